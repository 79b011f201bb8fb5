package sqlite

import (
	"errors"
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// identity tells a file from all others.
type identity struct {
	major, minor uint32
	inode        uint64
}

// identify asks for the inode alone. Who asks for a file's times, as [os.Stat] does, has Linux (from 6.13 on) give the next write a
// time of its own, which the next sync then writes, too: that took a third longer.
func identify(path string) (identity, error) {
	var st unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, path, 0, unix.STATX_INO, &st)
	for errors.Is(err, unix.EINTR) {
		err = unix.Statx(unix.AT_FDCWD, path, 0, unix.STATX_INO, &st)
	}
	switch {
	case err == nil:
		return identity{st.Dev_major, st.Dev_minor, st.Ino}, nil
	case !errors.Is(err, unix.ENOSYS) && !errors.Is(err, unix.EPERM): // which older sandboxes answer
		return identity{}, &fs.PathError{Op: "statx", Path: path, Err: err}
	}
	info, err := os.Stat(path)
	if err != nil {
		return identity{}, err
	}
	old := info.Sys().(*syscall.Stat_t)
	return identity{unix.Major(old.Dev), unix.Minor(old.Dev), old.Ino}, nil
}

func (i identity) same(j identity) bool { return i == j }
