// Package migrations holds the schema of both stores as numbered goose files. A file that was released never
// changes; the schema changes by adding the next one to both folders.
//
// Those of SQLite are one block of statements each: goose looks for the end of a statement outside of blocks with a buffer
// of 4 MiB a line, at each start on a new file.
package migrations

import "embed"

// FS holds the folders postgres and sqlite.
//
//go:embed postgres/*.sql sqlite/*.sql
var FS embed.FS
