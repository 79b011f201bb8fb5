//go:build race

package quickconn

import (
	"runtime"
	"syscall"
	"unsafe"
)

// The race detector takes what was done before a write to come before what is done behind the read of it, which package syscall
// tells it. So it has to be told of reads and writes that go past that package.

// raceRead has read into p. A read of nothing succeeds, and tells the detector that something was read.
func raceRead(fd uintptr, p []byte) {
	if len(p) > 0 {
		runtime.RaceWriteRange(unsafe.Pointer(unsafe.SliceData(p)), len(p))
	}
	_, _ = syscall.Read(int(fd), nil)
}

// raceWrite is about to write p. The detector is told of a write before its file is found to be none.
func raceWrite(p []byte) {
	if len(p) > 0 {
		runtime.RaceReadRange(unsafe.Pointer(unsafe.SliceData(p)), len(p))
	}
	_, _ = syscall.Write(-1, nil)
}
