package testenv

import (
	"crypto/rand"
	"errors"
	"fmt"
	"math/big"
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
	dir      string // everything the server writes
	release  func() // gives up the claim on dir
	port     int
	settings []string
	standby  bool // it follows another one, and takes no writes
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
	return c, c.startSomewhere(password)
}

// follow creates a standby of a running cluster and starts it.
func (c *cluster) follow() (_ *cluster, err error) {
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
	return s, s.startSomewhere(password)
}

// startSomewhere starts the server on a free port.
func (c *cluster) startSomewhere(password string) (err error) {
	for try := 0; ; try++ {
		if c.port, err = freePort(); err != nil {
			return err
		}
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

// makeDir makes the cluster's folder where the user that the server runs as can reach it.
func (c *cluster) makeDir() (err error) {
	parent := os.TempDir()
	if os.Geteuid() == 0 && !open(parent) {
		parent = "/tmp"
	}
	sweep(filepath.Join(parent, dirPattern+"*"))
	if c.dir, err = os.MkdirTemp(parent, dirPattern); err != nil {
		return err
	}
	if c.release, err = claim(c.dir); err != nil {
		return err
	}
	return handOver(c.dir)
}

// open tells whether everybody may enter dir and the folders it is in.
func open(dir string) bool {
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

// initdb makes the cluster. It asks for a password, even here: a superuser of PostgreSQL may run programs, and
// everybody on the machine can connect to 127.0.0.1. Its random text needs no slow hash: the 4096 rounds of SCRAM for each
// connection were a fifth of what tests took.
func (c *cluster) initdb(password string) error {
	file := filepath.Join(c.dir, "password")
	if err := os.WriteFile(file, []byte(password), 0o600); err != nil {
		return err
	}
	if err := handOver(file); err != nil {
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

// start starts the server on c.port, and recovers first if it was killed.
func (c *cluster) start() error {
	args := []string{"-D", c.data(), "-p", strconv.Itoa(c.port), "-k", c.dir, "-c", "listen_addresses=127.0.0.1",
		"-c", "max_connections=200", "-c", "shared_buffers=32MB",
		// posix, the default, would leave files in /dev/shm after a kill
		"-c", "dynamic_shared_memory_type=mmap"}
	for _, s := range c.settings {
		args = append(args, "-c", s)
	}
	cmd, err := c.command("postgres", args...)
	if err != nil {
		return err
	}
	// SIGQUIT is the immediate shutdown, which frees the shared memory that SIGKILL leaves behind.
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

// remove stops the server, if it runs, and deletes what it wrote.
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

// freeSharedMemory removes the segment of a server that was killed and not started again, which else lasts until
// the machine is restarted. Its id is in the seventh line of the file that a server removes when it stops itself.
func (c *cluster) freeSharedMemory() {
	file, err := os.ReadFile(filepath.Join(c.data(), "postmaster.pid"))
	if err != nil {
		return
	}
	if lines := strings.Split(string(file), "\n"); len(lines) > 6 {
		if f := strings.Fields(lines[6]); len(f) == 2 {
			_ = exec.Command("ipcrm", "-m", f[1]).Run() // without ipcrm, 56 bytes stay
		}
	}
}

func (c *cluster) command(name string, args ...string) (*exec.Cmd, error) {
	cmd := exec.Command(filepath.Join(c.bin, name), args...)
	cmd.Dir = c.dir
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "PG") { // PGPORT, PGDATA and others would change what is started
			cmd.Env = append(cmd.Env, v)
		}
	}
	cmd.Env = append(cmd.Env, "LC_ALL=C", "TZ=UTC") // readiness is read from messages, in English then
	return cmd, giveTo(cmd, c.dir)
}

// freePort finds a port that nobody listens on. It stays below the range from which systems take the ports of
// outgoing connections: a client that redials a dead server there may get the server's own port, connect to
// itself, and keep the server from coming back.
func freePort() (int, error) {
	for range 100 {
		n, err := rand.Int(rand.Reader, big.NewInt(12000))
		if err != nil {
			return 0, err
		}
		port := 20000 + int(n.Int64())
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err == nil {
			return port, l.Close()
		}
	}
	return 0, errors.New("no free port between 20000 and 32000 in 100 tries")
}
