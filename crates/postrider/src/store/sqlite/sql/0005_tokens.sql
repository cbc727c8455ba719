-- Tokens of the API. Only a digest and the prefix of a token are kept.

CREATE TABLE _postrider_tokens (
  prefix TEXT PRIMARY KEY,
  name TEXT NOT NULL,
  scope TEXT NOT NULL CHECK (scope IN ('admin', 'application', 'monitor')),
  digest BLOB NOT NULL,
  created_at INTEGER NOT NULL
) WITHOUT ROWID;
