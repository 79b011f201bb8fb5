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

// patience bounds every wait for a server. It is long, because a slow machine must not fail the tests.
const patience = 60 * time.Second

// child is a server process and its output. The output ends only when the children of the process have ended too, so that
// stop and kill can wait for all of them.
type child struct {
	cmd   *exec.Cmd
	ready chan struct{} // closed when the output has said that the server is ready
	done  chan struct{} // closed when the process was reaped and the output has ended

	mu   sync.Mutex
	tail []string // the last lines of the output
}

// startChild starts cmd, and returns when a line of its output contains readyText. The process gets signal when the test
// process dies.
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
		return nil, fmt.Errorf("%s exited at once:\n%s", cmd.Path, c.output())
	case <-time.After(patience):
		return nil, errors.Join(fmt.Errorf("%s is not ready after %s:\n%s", cmd.Path, patience, c.output()), c.kill())
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
	_ = c.cmd.Wait() // either it was stopped, or output has the reason
}

func (c *child) keep(line string) {
	const maxLines = 50
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.tail) == maxLines {
		c.tail = c.tail[1:]
	}
	c.tail = append(c.tail, line)
}

func (c *child) output() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return strings.Join(c.tail, "")
}

// stop sends a signal, and kills the process if it does not end.
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

// kill ends the process and its children as in a crash. It suspends the process first, so that it neither cleans up after
// its children nor starts new ones.
func (c *child) kill() error {
	select {
	case <-c.done:
		return nil // another process may have its pid by now
	default:
	}
	if err := suspend(c.cmd.Process); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	for _, pid := range childrenOf(c.cmd.Process.Pid) {
		if p, err := os.FindProcess(pid); err == nil {
			_ = p.Kill() // it fails if the child has just ended
		}
	}
	if err := c.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-c.done:
		return nil
	case <-time.After(patience):
		return fmt.Errorf("%s or a child of it was still running %s after it was killed", c.cmd.Path, patience)
	}
}
