//go:build race

package quickconn

import (
	"runtime"
	"syscall"
	"unsafe"
)

// Under the race detector, what happened before a write must be known to have happened before what
// follows the read of it. Package syscall tells the detector so. Reads and writes that bypass that
// package have to tell it themselves.

// raceRead tells the detector of a read into p. Reading nothing from fd succeeds, and makes package
// syscall tell the detector of a read.
func raceRead(fd uintptr, p []byte) {
	if len(p) > 0 {
		runtime.RaceWriteRange(unsafe.Pointer(unsafe.SliceData(p)), len(p))
	}
	_, _ = syscall.Read(int(fd), nil)
}

// raceWrite tells the detector that p is about to be written. Package syscall tells the detector of
// a write before it finds that the file descriptor is invalid.
func raceWrite(p []byte) {
	if len(p) > 0 {
		runtime.RaceReadRange(unsafe.Pointer(unsafe.SliceData(p)), len(p))
	}
	_, _ = syscall.Write(-1, nil)
}
