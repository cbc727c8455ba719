-- Created again whenever a month's table is created or dropped.
CREATE VIEW _postrider_archive AS
{months};

-- Messages created before the first month or after the last one go to the nearest month.
CREATE TRIGGER _postrider_archive_add INSTEAD OF INSERT ON _postrider_archive
BEGIN
{inserts}
END;
