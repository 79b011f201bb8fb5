package sqlite

import (
	"errors"
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// fileID identifies a file.
type fileID struct {
	major, minor uint32
	inode        uint64
}

// fileIDOf asks for the inode only. If a process asks for a file's times, as [os.Stat] does, Linux
// (from 6.13 on) gives the next write a new timestamp, which the next sync has to write too: that
// took a third longer.
func fileIDOf(path string) (fileID, error) {
	var st unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, path, 0, unix.STATX_INO, &st)
	for errors.Is(err, unix.EINTR) {
		err = unix.Statx(unix.AT_FDCWD, path, 0, unix.STATX_INO, &st)
	}
	switch {
	case err == nil:
		return fileID{st.Dev_major, st.Dev_minor, st.Ino}, nil
	case !errors.Is(err, unix.ENOSYS) && !errors.Is(err, unix.EPERM): // as older sandboxes answer
		return fileID{}, &fs.PathError{Op: "statx", Path: path, Err: err}
	}
	info, err := os.Stat(path)
	if err != nil {
		return fileID{}, err
	}
	old := info.Sys().(*syscall.Stat_t)
	return fileID{unix.Major(old.Dev), unix.Minor(old.Dev), old.Ino}, nil
}

func (i fileID) same(j fileID) bool { return i == j }
