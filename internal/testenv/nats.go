package testenv

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"

	natsserver "github.com/nats-io/nats-server/v2/server"
)

// NATS starts a NATS server with JetStream inside the test process, on a port of its own, and stops it when the test
// ends. Its ClientURL is the address to connect to. change may set other options.
func NATS(tb testing.TB, change ...func(*natsserver.Options)) *natsserver.Server {
	tb.Helper()
	settings := natsSettings{Port: natsserver.RANDOM_PORT, Dir: tb.TempDir()}
	s, err := settings.start(change...)
	if err != nil {
		tb.Fatalf("testenv: start NATS: %v", err)
	}
	tb.Cleanup(func() {
		s.Shutdown()
		s.WaitForShutdown()
	})
	return s
}

// NATSProc is a NATS server with JetStream in a process of its own.
type NATSProc struct {
	// URL is the address to connect to; it stays the same through Kill and Start.
	URL string

	tb       testing.TB
	settings natsSettings
	process  *child
}

// NATSServer starts a NATS server that can be killed and stops it when the test ends. The process is the test
// binary once more, so the package's TestMain must call Main.
func NATSServer(tb testing.TB) *NATSProc {
	tb.Helper()
	if !inMain.Load() {
		tb.Fatal("testenv: NATSServer needs func TestMain(m *testing.M) { testenv.Main(m) }")
	}
	port, err := freePort()
	if err != nil {
		tb.Fatalf("testenv: %v", err)
	}
	p := &NATSProc{
		URL: fmt.Sprintf("nats://127.0.0.1:%d", port),
		tb:  tb,
		// Acknowledged is then on disk, as the server that the product embeds has it.
		settings: natsSettings{Port: port, Dir: tb.TempDir(), SyncAlways: true},
	}
	if p.process, err = p.settings.startChild(); err != nil {
		tb.Fatalf("testenv: start NATS: %v", err)
	}
	tb.Cleanup(p.Kill)
	return p
}

// Kill ends the server with SIGKILL and returns when it is gone. Kill and Start report what goes wrong with Errorf,
// so that any goroutine may call them, though not two at a time.
func (p *NATSProc) Kill() {
	p.tb.Helper()
	if err := p.process.kill(); err != nil {
		p.tb.Errorf("testenv: kill NATS: %v", err)
	}
}

// Start starts the killed server again, on the same port and store, and returns when it takes connections.
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
	natsChildEnv = "LIMITS_TESTENV_NATS" // natsSettings as JSON: be this server instead of running tests
	natsReady    = "testenv: NATS is ready"
)

// natsSettings is all that the servers differ in.
type natsSettings struct {
	Port       int
	Dir        string
	SyncAlways bool
}

func (n natsSettings) start(change ...func(*natsserver.Options)) (*natsserver.Server, error) {
	options := &natsserver.Options{
		Host:       "127.0.0.1",
		Port:       n.Port,
		NoSigs:     true,
		NoLog:      true,
		JetStream:  true,
		StoreDir:   n.Dir,
		SyncAlways: n.SyncAlways,
		// Left out, they follow the machine's free memory and disk.
		JetStreamMaxMemory: 64 << 20,
		JetStreamMaxStore:  8 << 30,
	}
	for _, c := range change {
		c(options)
	}
	s, err := natsserver.NewServer(options)
	if err != nil {
		return nil, err
	}
	s.Start()
	if !s.ReadyForConnections(patience) {
		s.Shutdown()
		return nil, errors.New("not ready for connections after " + patience.String())
	}
	return s, nil
}

// startChild executes the test binary again with the settings in its environment, which Main looks for.
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

// runNATSChild is the whole life of the child process; it returns the exit status.
func runNATSChild(settings string) int {
	var n natsSettings
	if err := json.Unmarshal([]byte(settings), &n); err != nil {
		fmt.Fprintln(os.Stderr, "testenv:", err)
		return 2
	}
	s, err := n.start()
	if err != nil {
		fmt.Fprintln(os.Stderr, "testenv:", err)
		return 1
	}
	fmt.Println(natsReady)
	s.WaitForShutdown()
	return 1
}
