-- The store's clock stands still where it only reads this table.
CREATE TABLE public.test_clock (now timestamptz NOT NULL);
GRANT SELECT ON public.test_clock TO PUBLIC;
INSERT INTO public.test_clock VALUES ('-infinity');

DO $install$
DECLARE
  -- Plans depend on it.
  volatility text := CASE (SELECT provolatile FROM pg_proc WHERE oid = to_regprocedure('postrider._now()'))
    WHEN 'i' THEN 'IMMUTABLE' WHEN 's' THEN 'STABLE' WHEN 'v' THEN 'VOLATILE' END;
BEGIN
  IF volatility IS NULL THEN
    RAISE 'there is no postrider._now() to replace: migrate first';
  END IF;
  EXECUTE format(
    'CREATE OR REPLACE FUNCTION postrider._now() RETURNS timestamptz LANGUAGE sql %s
       AS $now$ SELECT now FROM public.test_clock $now$', volatility);
END
$install$;
