package testenv

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// spawnThread runs functions on an OS thread that lives as long as the process: Linux sends the parent death signal when the
// thread that started the child ends, not when the process does.
var spawnThread = sync.OnceValue(func() chan<- func() {
	work := make(chan func())
	go func() {
		runtime.LockOSThread()
		for f := range work {
			f()
		}
	}()
	return work
})

// spawn starts cmd, which gets signal when this process dies. It has a process group of its own, so that an interrupt from
// the terminal reaches the tests but not their servers.
func spawn(cmd *exec.Cmd, signal syscall.Signal) error {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = signal
	cmd.SysProcAttr.Setpgid = true
	result := make(chan error)
	spawnThread() <- func() { result <- cmd.Start() }
	return <-result
}

func suspend(p *os.Process) error { return p.Signal(syscall.SIGSTOP) }

// childrenOf reads /proc, because ps may not be installed.
func childrenOf(parent int) []int {
	var pids []int
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		stat, err := os.ReadFile(path)
		if err != nil {
			continue // the process has ended since
		}
		// pid (name) state ppid …; the name may contain anything, even parentheses
		after := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
		if len(after) > 1 && after[1] == strconv.Itoa(parent) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
			pids = append(pids, pid)
		}
	}
	return pids
}

// runAsOwner makes cmd run as the owner of dir if this process is root, because PostgreSQL refuses to run as root.
func runAsOwner(cmd *exec.Cmd, dir string) error {
	if os.Geteuid() != 0 {
		return nil
	}
	info, err := os.Stat(dir)
	if err != nil {
		return err
	}
	owner := info.Sys().(*syscall.Stat_t)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: owner.Uid, Gid: owner.Gid}}
	return nil
}

// chownFromRoot gives path to a user other than root if this process is root, because PostgreSQL refuses to run as root.
func chownFromRoot(path string) error {
	if os.Geteuid() != 0 {
		return nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, _ := strconv.Atoi(u.Uid)
		gid, _ := strconv.Atoi(u.Gid)
		return os.Chown(path, uid, gid)
	}
	return errors.New("PostgreSQL does not run as root, and there is neither a user postgres nor a user nobody")
}

// lock waits for the lock of a file, and holds it until unlock or the end of this process.
func lock(path string) (unlock func(), err error) {
	return flock(path, os.O_CREATE, syscall.LOCK_EX)
}

// claim locks dir until release or the end of this process, so that the sweep of another process does not remove it.
func claim(dir string) (release func(), err error) {
	return flock(dir, syscall.O_DIRECTORY, syscall.LOCK_EX|syscall.LOCK_NB)
}

// flock follows no symbolic link, because another user may have made one in the temporary folder.
func flock(path string, flags, how int) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|flags, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), how); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return func() { f.Close() }, nil
}

// sweep removes folders that no process claims: their processes were killed. It spares a folder younger than ten minutes,
// whose process may be about to claim it.
func sweep(pattern string) {
	dirs, _ := filepath.Glob(pattern)
	for _, dir := range dirs {
		info, err := os.Lstat(dir)
		if err != nil || time.Since(info.ModTime()) < 10*time.Minute {
			continue
		}
		if release, err := claim(dir); err == nil {
			_ = os.RemoveAll(dir) // it fails for a folder of another user
			release()
		}
	}
}
