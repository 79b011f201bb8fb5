// Package migrations holds the schema of both stores as numbered goose files. A released file never
// changes; the schema changes by adding the next file to the folder of each store that it concerns. So
// the numbers of the two folders differ.
//
// Each SQLite file has all its statements in one StatementBegin block. Outside of blocks goose
// searches for the end of a statement with a buffer of 4 MiB for each line, which would cost every
// start with a new database file.
package migrations

import "embed"

// FS holds the folders postgres and sqlite.
//
//go:embed postgres/*.sql sqlite/*.sql
var FS embed.FS
