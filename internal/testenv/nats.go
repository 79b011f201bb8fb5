package testenv

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"

	natsserver "github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// NATS starts a NATS server with JetStream inside the test process, on a free port, and stops it when the test ends. Clients
// connect to its ClientURL. The functions in change may change its options.
func NATS(tb testing.TB, change ...func(*natsserver.Options)) *natsserver.Server {
	tb.Helper()
	o := local(&natsserver.Options{Port: natsserver.RANDOM_PORT, JetStream: true, StoreDir: tb.TempDir()})
	for _, c := range change {
		c(o)
	}
	return waitReady(tb, startServer(tb, o))[0]
}

// startServer starts a server inside the test process, and stops it when the test ends.
func startServer(tb testing.TB, o *natsserver.Options) *natsserver.Server {
	tb.Helper()
	s, err := natsserver.NewServer(o)
	if err != nil {
		tb.Fatalf("testenv: start NATS: %v", err)
	}
	s.Start()
	tb.Cleanup(func() {
		s.Shutdown()
		s.WaitForShutdown()
	})
	return s
}

// local sets the options that all servers of tests have in common.
func local(o *natsserver.Options) *natsserver.Options {
	o.Host, o.NoSigs, o.NoLog = "127.0.0.1", true, true
	// The defaults depend on the machine's free memory and disk.
	o.JetStreamMaxMemory, o.JetStreamMaxStore = 64<<20, 8<<30
	return o
}

// waitReady waits until servers accept connections; those of a cluster do not before it has a leader.
func waitReady(tb testing.TB, servers ...*natsserver.Server) []*natsserver.Server {
	tb.Helper()
	for _, s := range servers {
		if !s.ReadyForConnections(patience) {
			tb.Fatalf("testenv: start NATS: not ready for connections after %s", patience)
		}
	}
	return servers
}

// Connect connects to a server until the test ends.
func Connect(tb testing.TB, url string, options ...nats.Option) *nats.Conn {
	tb.Helper()
	nc, err := nats.Connect(url, options...)
	if err != nil {
		tb.Fatalf("testenv: connect to NATS: %v", err)
	}
	tb.Cleanup(nc.Close)
	return nc
}

// JetStream returns the JetStream of a connection.
func JetStream(tb testing.TB, nc *nats.Conn, options ...jetstream.JetStreamOpt) jetstream.JetStream {
	tb.Helper()
	js, err := jetstream.New(nc, options...)
	if err != nil {
		tb.Fatalf("testenv: %v", err)
	}
	return js
}

// NATSProc is a NATS server with JetStream in a process of its own.
type NATSProc struct {
	// URL is the address to connect to. Kill and Start do not change it.
	URL string

	tb       testing.TB
	settings natsSettings
	process  *child
}

// NATSServer starts a NATS server that can be killed, and stops it when the test ends. Its process runs the test binary
// again, so the package's TestMain must call Main.
func NATSServer(tb testing.TB) *NATSProc {
	tb.Helper()
	if !inMain.Load() {
		tb.Fatal("testenv: NATSServer needs func TestMain(m *testing.M) { testenv.Main(m) }")
	}
	ports, err := freePorts(1)
	if err != nil {
		tb.Fatalf("testenv: %v", err)
	}
	p := &NATSProc{
		URL:      fmt.Sprintf("nats://127.0.0.1:%d", ports[0]),
		tb:       tb,
		settings: natsSettings{Port: ports[0], Dir: tb.TempDir()},
	}
	if p.process, err = p.settings.startChild(); err != nil {
		tb.Fatalf("testenv: start NATS: %v", err)
	}
	tb.Cleanup(p.Kill)
	return p
}

// Kill ends the server with SIGKILL, and returns when it is gone. Kill and Start report errors with Errorf, so that they may
// be called in any goroutine, but not concurrently.
func (p *NATSProc) Kill() {
	p.tb.Helper()
	if err := p.process.kill(); err != nil {
		p.tb.Errorf("testenv: kill NATS: %v", err)
	}
}

// Start starts the killed server again with the same port and store, and returns when it accepts connections.
func (p *NATSProc) Start() {
	p.tb.Helper()
	process, err := p.settings.startChild()
	if err != nil {
		p.tb.Errorf("testenv: start NATS: %v", err)
		return
	}
	p.process = process
}

const (
	natsChildEnv = "LIMITS_TESTENV_NATS" // has natsSettings as JSON; with it Main runs this server instead of tests
	natsReady    = "testenv: NATS is ready"
)

// natsSettings are the settings in which such servers differ.
type natsSettings struct {
	Port int
	Dir  string
}

// startChild starts the test binary again with the settings in its environment, where Main finds them.
func (n natsSettings) startChild() (*child, error) {
	settings, err := json.Marshal(n)
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), natsChildEnv+"="+string(settings))
	return startChild(cmd, natsReady, syscall.SIGKILL)
}

// runNATSChild runs the server in the child process, and returns the exit status.
func runNATSChild(settings string) int {
	var n natsSettings
	if err := json.Unmarshal([]byte(settings), &n); err != nil {
		fmt.Fprintln(os.Stderr, "testenv:", err)
		return 2
	}
	// With SyncAlways a message is on disk before it is acknowledged, as in the server that the product embeds.
	s, err := natsserver.NewServer(local(&natsserver.Options{Port: n.Port, JetStream: true, StoreDir: n.Dir, SyncAlways: true}))
	if err != nil {
		fmt.Fprintln(os.Stderr, "testenv:", err)
		return 1
	}
	s.Start()
	if !s.ReadyForConnections(patience) {
		fmt.Fprintln(os.Stderr, "testenv: not ready for connections after", patience)
		return 1
	}
	fmt.Println(natsReady)
	s.WaitForShutdown()
	return 1
}
