-- Version 2. What `postrider_send` of `surface/` did last; the transaction that sent reads it.

CREATE TABLE _postrider_last_send (
  single INTEGER PRIMARY KEY CHECK (single = 1),
  id INTEGER,
  duplicate INTEGER NOT NULL DEFAULT 0
);
INSERT INTO _postrider_last_send (single) VALUES (1);
