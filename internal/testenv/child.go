package testenv

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

// patience bounds every wait for a server. It is long because a loaded machine is not a failure.
const patience = 60 * time.Second

// child is a server process and what it says. Its output ends only when its own children have ended too, which is
// how a stop or a kill knows that all of them are gone.
type child struct {
	cmd   *exec.Cmd
	ready chan struct{} // closed when the server said that it is ready
	done  chan struct{} // closed when the process was reaped and the output has ended

	mu   sync.Mutex
	tail []string // the last lines it wrote
}

// startChild starts cmd and returns when its output has a line that contains readyText. The process gets signal
// when the test process dies.
func startChild(cmd *exec.Cmd, readyText string, signal syscall.Signal) (*child, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	cmd.Stdout, cmd.Stderr = w, w
	err = spawn(cmd, signal)
	w.Close()
	if err != nil {
		r.Close()
		return nil, err
	}
	c := &child{cmd: cmd, ready: make(chan struct{}), done: make(chan struct{})}
	go c.watch(r, readyText)
	select {
	case <-c.ready:
		return c, nil
	case <-c.done:
		return nil, fmt.Errorf("%s ended at once:\n%s", cmd.Path, c.said())
	case <-time.After(patience):
		return nil, errors.Join(fmt.Errorf("%s is not ready after %s:\n%s", cmd.Path, patience, c.said()), c.kill())
	}
}

func (c *child) watch(r *os.File, readyText string) {
	defer close(c.done)
	defer r.Close()
	seen := false
	for lines := bufio.NewReader(r); ; {
		line, err := lines.ReadString('\n')
		if line != "" {
			c.keep(line)
		}
		if !seen && strings.Contains(line, readyText) {
			seen = true
			close(c.ready)
		}
		if err != nil {
			break
		}
	}
	_ = c.cmd.Wait() // how it ended is no news: it was told to, or said() has the reason
}

func (c *child) keep(line string) {
	const most = 50
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.tail) == most {
		c.tail = c.tail[1:]
	}
	c.tail = append(c.tail, line)
}

func (c *child) said() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return strings.Join(c.tail, "")
}

// stop asks the process to end by signal, and kills it when it does not.
func (c *child) stop(signal os.Signal) error {
	if err := c.cmd.Process.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-c.done:
		return nil
	case <-time.After(patience):
		return c.kill()
	}
}

// kill ends the process and its children as a crash does. The process is held still first, so that it neither
// tidies up after its children nor starts others.
func (c *child) kill() error {
	select {
	case <-c.done:
		return nil // and its number may be another process's by now
	default:
	}
	if err := hold(c.cmd.Process); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	for _, pid := range childrenOf(c.cmd.Process.Pid) {
		if p, err := os.FindProcess(pid); err == nil {
			_ = p.Kill() // one that has just ended is as good
		}
	}
	if err := c.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-c.done:
		return nil
	case <-time.After(patience):
		return fmt.Errorf("%s or a child of it outlived its kill by %s", c.cmd.Path, patience)
	}
}
