package testenv

import (
	"crypto/rand"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// cluster is a PostgreSQL server with its data in a temporary folder.
type cluster struct {
	url string // of the database postgres, as the superuser

	bin      string // folder of the server's programs
	dir      string // folder of everything that the server writes
	release  func() // releases the claim on dir
	port     int
	settings []string
	standby  bool // it replicates another server, and accepts no writes
	process  *child
}

// newCluster creates a cluster and starts it on a free port of 127.0.0.1. Settings are name=value.
func newCluster(settings ...string) (_ *cluster, err error) {
	bin, err := postgresBinaries()
	if err != nil {
		return nil, err
	}
	c := &cluster{bin: bin, settings: settings, release: func() {}}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.remove())
		}
	}()
	password := rand.Text()
	if err := c.makeDir(); err != nil {
		return nil, err
	}
	if err := c.initdb(password); err != nil {
		return nil, err
	}
	return c, c.startOnFreePort(password)
}

// newStandby creates a standby of a running cluster and starts it.
func (c *cluster) newStandby() (_ *cluster, err error) {
	s := &cluster{bin: c.bin, settings: c.settings, release: func() {}, standby: true}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.remove())
		}
	}()
	if err := s.makeDir(); err != nil {
		return nil, err
	}
	u, err := url.Parse(c.url)
	if err != nil {
		return nil, err
	}
	password, _ := u.User.Password()
	cmd, err := s.command("pg_basebackup", "-h", "127.0.0.1", "-p", strconv.Itoa(c.port), "-U", "limits", "-D", s.data(), "-R", "-c", "fast", "--no-sync")
	if err != nil {
		return nil, err
	}
	cmd.Env = append(cmd.Env, "PGPASSWORD="+password)
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("pg_basebackup: %w\n%s", err, out)
	}
	return s, s.startOnFreePort(password)
}

// startOnFreePort starts the server on a free port. It tries others if another process takes the port first.
func (c *cluster) startOnFreePort(password string) error {
	for try := 0; ; try++ {
		ports, err := freePorts(1)
		if err != nil {
			return err
		}
		c.port = ports[0]
		if err = c.start(); err == nil {
			break
		}
		if try == 10 || !strings.Contains(err.Error(), "Address already in use") {
			return err
		}
	}
	c.url = fmt.Sprintf("postgres://limits:%s@127.0.0.1:%d/postgres?sslmode=disable", password, c.port)
	return nil
}

const dirPattern = "limits-pg-"

// makeDir makes the cluster's folder in a place that the server's user can reach.
func (c *cluster) makeDir() (err error) {
	parent := os.TempDir()
	if os.Geteuid() == 0 && !enterable(parent) {
		parent = "/tmp"
	}
	sweep(filepath.Join(parent, dirPattern+"*"))
	if c.dir, err = os.MkdirTemp(parent, dirPattern); err != nil {
		return err
	}
	if c.release, err = claim(c.dir); err != nil {
		return err
	}
	return chownFromRoot(c.dir)
}

// enterable reports whether all users may enter dir and its parents.
func enterable(dir string) bool {
	for ; ; dir = filepath.Dir(dir) {
		info, err := os.Stat(dir)
		if err != nil || info.Mode()&0o001 == 0 {
			return false
		}
		if dir == filepath.Dir(dir) {
			return true
		}
	}
}

func (c *cluster) data() string { return filepath.Join(c.dir, "data") }

// version is the server's major version, 0 if it is unknown.
func (c *cluster) version() int {
	file, _ := os.ReadFile(filepath.Join(c.data(), "PG_VERSION"))
	n, _ := strconv.Atoi(strings.TrimSpace(string(file)))
	return n
}

// initdb makes the cluster. It has a password even for tests: a superuser of PostgreSQL can run programs, and every user of
// the machine can connect to 127.0.0.1. The password is random, so md5 is enough; the 4096 rounds of SCRAM for each
// connection took a fifth of the time of the tests.
func (c *cluster) initdb(password string) error {
	file := filepath.Join(c.dir, "password")
	if err := os.WriteFile(file, []byte(password), 0o600); err != nil {
		return err
	}
	if err := chownFromRoot(file); err != nil {
		return err
	}
	cmd, err := c.command("initdb", "-D", c.data(), "-U", "limits", "-A", "md5", "--pwfile", file,
		"-E", "UTF8", "--locale=C", "--no-sync")
	if err != nil {
		return err
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w\n%s", err, out)
	}
	return nil
}

// start starts the server on c.port. A server that was killed recovers first.
func (c *cluster) start() error {
	args := []string{"-D", c.data(), "-p", strconv.Itoa(c.port), "-k", c.dir, "-c", "listen_addresses=127.0.0.1",
		"-c", "max_connections=200", "-c", "shared_buffers=32MB",
		// The default, posix, would leave files in /dev/shm after a kill.
		"-c", "dynamic_shared_memory_type=mmap"}
	for _, s := range c.settings {
		args = append(args, "-c", s)
	}
	cmd, err := c.command("postgres", args...)
	if err != nil {
		return err
	}
	// SIGQUIT is an immediate shutdown, which frees the shared memory; SIGKILL does not.
	ready := "database system is ready to accept connections"
	if c.standby {
		ready = "database system is ready to accept read"
	}
	process, err := startChild(cmd, ready, syscall.SIGQUIT)
	if err != nil {
		return err
	}
	c.process = process
	return nil
}

// remove stops the server, if it runs, and deletes its folder.
func (c *cluster) remove() error {
	defer c.release()
	var err error
	if c.process != nil {
		err = c.process.stop(syscall.SIGQUIT)
		c.freeSharedMemory()
	}
	if c.dir == "" {
		return err
	}
	return errors.Join(err, os.RemoveAll(c.dir))
}

// freeSharedMemory removes the shared memory segment of a server that was killed and not started again. Otherwise it would
// last until the machine restarts. Its id is in the seventh line of postmaster.pid, which a server removes when it stops.
func (c *cluster) freeSharedMemory() {
	file, err := os.ReadFile(filepath.Join(c.data(), "postmaster.pid"))
	if err != nil {
		return
	}
	if lines := strings.Split(string(file), "\n"); len(lines) > 6 {
		if f := strings.Fields(lines[6]); len(f) == 2 {
			_ = exec.Command("ipcrm", "-m", f[1]).Run() // without ipcrm, 56 bytes are leaked
		}
	}
}

func (c *cluster) command(name string, args ...string) (*exec.Cmd, error) {
	cmd := exec.Command(filepath.Join(c.bin, name), args...)
	cmd.Dir = c.dir
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "PG") { // PGPORT, PGDATA and others would change the server's settings
			cmd.Env = append(cmd.Env, v)
		}
	}
	cmd.Env = append(cmd.Env, "LC_ALL=C", "TZ=UTC") // English messages, from which readiness is read
	return cmd, runAsOwner(cmd, c.dir)
}

// freePorts finds different free ports below the range of ephemeral ports. In that range a client that redials a dead server
// could get the server's own port as its source port, connect to itself, and keep the server from starting again.
func freePorts(n int) (ports []int, err error) {
	for range 100 * n {
		port := 20000 + mathrand.IntN(12000)
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err != nil {
			continue
		}
		defer l.Close() // not before all are found
		if ports = append(ports, port); len(ports) == n {
			return ports, nil
		}
	}
	return nil, errors.New("too few free ports between 20000 and 32000")
}
