-- Made anew whenever a month begins or goes.
CREATE VIEW _postrider_archive AS
{months};

-- What was made before the first month or after the last one goes to the nearest.
CREATE TRIGGER _postrider_archive_add INSTEAD OF INSERT ON _postrider_archive
BEGIN
{inserts}
END;
