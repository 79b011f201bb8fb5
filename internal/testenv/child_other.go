//go:build !linux

package testenv

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
)

// On other systems than Linux a server outlives a test process that is killed, PostgreSQL cannot run if the tests run as
// root, and nothing is locked or swept.

func spawn(cmd *exec.Cmd, _ syscall.Signal) error { return cmd.Start() }

func suspend(*os.Process) error { return nil }

func childrenOf(parent int) []int {
	var pids []int
	out, _ := exec.Command("ps", "-A", "-o", "ppid=,pid=").Output()
	for line := range strings.Lines(string(out)) {
		f := strings.Fields(line)
		if len(f) == 2 && f[0] == strconv.Itoa(parent) {
			pid, _ := strconv.Atoi(f[1])
			pids = append(pids, pid)
		}
	}
	return pids
}

func runAsOwner(*exec.Cmd, string) error { return nil }

func chownFromRoot(string) error { return nil }

func lock(string) (unlock func(), err error) { return func() {}, nil }

func claim(string) (release func(), err error) { return func() {}, nil }

func sweep(string) {}
