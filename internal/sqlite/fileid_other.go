//go:build !linux

package sqlite

import "os"

// identity tells a file from all others.
type identity struct{ os.FileInfo }

func identify(path string) (identity, error) {
	info, err := os.Stat(path)
	return identity{info}, err
}

func (i identity) same(j identity) bool { return os.SameFile(i.FileInfo, j.FileInfo) }
