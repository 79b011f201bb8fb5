// Package yamlfile reads files that people write, strictly and as a whole: into Go types, or into a list of every mistake
// with its line, its path and the way out. A [Keeper] holds what such a file says, and reads it anew when it changes.
//
// The package knows nothing of what stands in a file.
package yamlfile
