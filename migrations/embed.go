// Package migrations holds the schema of both stores as numbered goose files. A file that was released never
// changes; the schema changes by adding the next one to both folders.
package migrations

import "embed"

// FS holds the folders postgres and sqlite.
//
//go:embed postgres/*.sql sqlite/*.sql
var FS embed.FS
