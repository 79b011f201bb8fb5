package quickconn

import (
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"unsafe"
)

// maxCallBytes bounds one system call, and with it how long the garbage collector may have to wait
// for the call to return.
const maxCallBytes = 64 << 10

type conn struct {
	net.Conn
	raw    syscall.RawConn
	waited bool
}

func wrap(c net.Conn) net.Conn {
	switch c.(type) {
	case *net.TCPConn, *net.UnixConn:
	default:
		return c
	}
	raw, err := c.(syscall.Conn).SyscallConn()
	if err != nil {
		return c // it is closed
	}
	return &conn{Conn: c, raw: raw}
}

// Read implements [net.Conn].
func (c *conn) Read(p []byte) (n int, err error) {
	if len(p) == 0 {
		return 0, nil
	}
	var errno syscall.Errno
	err = c.raw.Read(func(fd uintptr) bool {
		if n, errno = call(syscall.SYS_READ, fd, p); errno == 0 {
			raceRead(fd, p[:n])
		}
		if errno == syscall.EAGAIN {
			c.waited = true
			return false // called again when there is something to read
		}
		return true
	})
	if err = c.explain("read", err, errno); err == nil && n == 0 {
		err = io.EOF
	}
	return n, err
}

// Write implements [net.Conn]. It writes p in one piece even if others write at the same time.
func (c *conn) Write(p []byte) (n int, err error) {
	raceWrite(p)
	var errno syscall.Errno
	err = c.raw.Write(func(fd uintptr) bool {
		var some int
		some, errno = writeAvailable(fd, p[n:])
		n += some
		return errno != syscall.EAGAIN // after that it is called again when there is room
	})
	return n, c.explain("write", err, errno)
}

// TryWrite implements [Trier].
func (c *conn) TryWrite(p []byte) (n int, err error) {
	raceWrite(p)
	var errno syscall.Errno
	err = c.raw.Control(func(fd uintptr) { n, errno = writeAvailable(fd, p) })
	if errno == syscall.EAGAIN {
		errno = 0
	}
	return n, c.explain("write", err, errno)
}

// Waited implements [Trier].
func (c *conn) Waited() bool {
	waited := c.waited
	c.waited = false
	return waited
}

// writeAvailable writes p until it is written, there is no more room (EAGAIN), or the call fails.
func writeAvailable(fd uintptr, p []byte) (n int, errno syscall.Errno) {
	for n < len(p) && errno == 0 {
		var some int
		some, errno = call(syscall.SYS_WRITE, fd, p[n:])
		n += some
	}
	return n, errno
}

// explain returns the error of an operation in the form that package net gives it.
func (c *conn) explain(op string, err error, errno syscall.Errno) error {
	if err == nil && errno != 0 {
		err = os.NewSyscallError(op, errno)
	} else if e, ok := errors.AsType[*net.OpError](err); ok {
		err = e.Err // of waiting: a deadline, or that the connection is closed
	}
	if err == nil {
		return nil
	}
	local := c.LocalAddr()
	return &net.OpError{Op: op, Net: local.Network(), Source: local, Addr: c.RemoteAddr(), Err: err}
}

// call makes a system call without telling the scheduler, which is right because the call does not
// block.
func call(number, fd uintptr, p []byte) (n int, errno syscall.Errno) {
	size := uintptr(min(len(p), maxCallBytes))
	for {
		r, _, errno := syscall.RawSyscall(number, fd, uintptr(unsafe.Pointer(unsafe.SliceData(p))), size)
		switch errno {
		case 0:
			return int(r), 0
		case syscall.EINTR:
		default:
			return 0, errno
		}
	}
}
