// Package yamlfile reads YAML files that people write. It reads them strictly and as a whole, into Go types or into a list
// of every mistake, with its line, its path and how to correct it. A [Keeper] holds the content of such a file, and reloads
// it when the file changes.
//
// The package knows nothing of the content of any particular file.
package yamlfile
