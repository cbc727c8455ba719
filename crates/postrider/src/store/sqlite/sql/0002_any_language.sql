-- Version 2. The result of the last `postrider_send` (surface/), read by the transaction that sent.

CREATE TABLE _postrider_last_send (
  single INTEGER PRIMARY KEY CHECK (single = 1),
  id INTEGER,
  duplicate INTEGER NOT NULL DEFAULT 0
);
INSERT INTO _postrider_last_send (single) VALUES (1);
