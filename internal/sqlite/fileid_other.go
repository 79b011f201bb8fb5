//go:build !linux

package sqlite

import "os"

// fileID identifies a file.
type fileID struct{ os.FileInfo }

func fileIDOf(path string) (fileID, error) {
	info, err := os.Stat(path)
	return fileID{info}, err
}

func (i fileID) same(j fileID) bool { return os.SameFile(i.FileInfo, j.FileInfo) }
