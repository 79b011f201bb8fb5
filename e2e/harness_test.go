// Package e2e tests the real programs: limiters and alerters on a real PostgreSQL or a SQLite file, and a real NATS server.
// Plain NATS clients send them requests, and the tests kill them.
package e2e

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/testenv"
)

// patience bounds every wait of these tests. It is long, because a slow machine must not fail them, and the claims of a
// killed process last for a minute.
const patience = 150 * time.Second

var binary struct {
	once sync.Once
	dir  string
	err  error
}

func TestMain(m *testing.M) { testenv.Main(m, func() { os.RemoveAll(binary.dir) }) }

// program builds the limiter and the alerter once, with the race detector, and returns the path of one.
func program(t testing.TB, name string) string {
	t.Helper()
	binary.once.Do(func() {
		if binary.dir, binary.err = os.MkdirTemp("", "limits-e2e-"); binary.err != nil {
			return
		}
		build := exec.Command("go", "build", "-race", "-o", binary.dir+"/", "../cmd/limiter", "../cmd/alerter")
		if out, err := build.CombinedOutput(); err != nil {
			binary.err = fmt.Errorf("%w\n%s", err, out)
		}
	})
	if binary.err != nil {
		t.Fatalf("build the programs: %v", binary.err)
	}
	return filepath.Join(binary.dir, name)
}

// worker is a process of a limiter or an alerter.
type worker struct {
	cmd  *exec.Cmd
	nats string    // URL of its NATS server
	http string    // host:port
	out  io.Closer // the pipe from which its log is read
	done chan struct{}
	err  error // of its end; set before done is closed

	mu   sync.Mutex
	logs strings.Builder
}

var readyLine = regexp.MustCompile(`ready nats=(\S+) http=(\S+)`)

// start runs a limiter with the given environment and waits until it is ready.
func start(t testing.TB, env ...string) *worker {
	t.Helper()
	return launch(t, exec.Command(program(t, "limiter"), "serve"), env)
}

// startAlerter runs an alerter in the same way as start.
func startAlerter(t testing.TB, env ...string) *worker {
	t.Helper()
	return launch(t, exec.Command(program(t, "alerter")), env)
}

func launch(t testing.TB, cmd *exec.Cmd, env []string) *worker {
	t.Helper()
	w := &worker{cmd: cmd, done: make(chan struct{})}
	w.cmd.Env = append(os.Environ(), "DATA_DIR="+filepath.Join(t.TempDir(), "data"), "NATS_LISTEN=127.0.0.1:0", "HTTP_ADDR=127.0.0.1:0")
	w.cmd.Env = append(w.cmd.Env, env...)
	stderr, err := w.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	w.cmd.Stdout, w.out = w.cmd.Stderr, stderr
	if err := w.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		w.kill()
		if t.Failed() {
			t.Logf("log of worker %d:\n%s", w.cmd.Process.Pid, w.log())
		}
		if strings.Contains(w.log(), "WARNING: DATA RACE") {
			t.Errorf("data race in worker %d:\n%s", w.cmd.Process.Pid, w.log())
		}
	})
	ready := make(chan []string, 1)
	go w.read(stderr, ready)
	select {
	case found := <-ready:
		w.nats, w.http = found[1], found[2]
	case <-w.done:
		t.Fatalf("the limiter ended before it was ready: %v\n%s", w.err, w.log())
	case <-time.After(patience):
		t.Fatalf("the limiter is not ready after %s\n%s", patience, w.log())
	}
	return w
}

func (w *worker) read(r io.Reader, ready chan<- []string) {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		w.mu.Lock()
		if w.logs.Len() < 1<<20 {
			fmt.Fprintln(&w.logs, lines.Text())
		}
		w.mu.Unlock()
		if found := readyLine.FindStringSubmatch(lines.Text()); found != nil {
			ready <- found
		}
	}
	w.err = w.cmd.Wait()
	close(w.done)
}

func (w *worker) log() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.logs.String()
}

// metrics reads the worker's /metrics.
func (w *worker) metrics() (string, error) {
	resp, err := http.Get("http://" + w.http + "/metrics")
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return string(body), err
}

// kill ends the process as a crash does.
func (w *worker) kill() {
	_ = w.cmd.Process.Kill() // it fails if the process has ended already
	<-w.done
}

func signal(t testing.TB, w *worker, s syscall.Signal) {
	t.Helper()
	if err := w.cmd.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
}

// terminate sends SIGTERM, and waits until the process has ended.
func (w *worker) terminate(t testing.TB) {
	t.Helper()
	signal(t, w, syscall.SIGTERM)
	select {
	case <-w.done:
	case <-time.After(patience):
		t.Fatalf("the limiter outlives SIGTERM by %s\n%s", patience, w.log())
	}
	if w.err != nil {
		t.Errorf("the limiter ended with %v\n%s", w.err, w.log())
	}
}

// deployment is a way to run the limiter.
type deployment struct {
	name string
	// env returns the settings of a worker. It is called once per test.
	env func(t *testing.T) []string
}

// deployments are a limiter alone with SQLite, and a worker with PostgreSQL and a NATS server.
var deployments = []deployment{
	{"sqlite", func(*testing.T) []string { return nil }},
	{"postgres", func(t *testing.T) []string {
		return []string{"DATABASE_URL=" + testenv.Postgres(t), "NATS_URL=" + testenv.NATS(t).ClientURL()}
	}},
}

func everywhere(t *testing.T, f func(t *testing.T, env []string)) {
	for _, d := range deployments {
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			f(t, d.env(t))
		})
	}
}

// connect returns a plain NATS client.
func connect(t testing.TB, url string) *nats.Conn {
	t.Helper()
	return testenv.Connect(t, url, nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond))
}

// request sends a body unchanged and returns the answer unchanged.
func request(t testing.TB, nc *nats.Conn, subject, body string) *nats.Msg {
	t.Helper()
	msg, err := nc.Request(subject, []byte(body), patience)
	if err != nil {
		t.Fatalf("%s %s: %v", subject, body, err)
	}
	return msg
}

// decide sends a request and reads the decision.
func decide(t testing.TB, nc *nats.Conn, subject, body string) (r limits.Reply) {
	t.Helper()
	r, err := try(nc, subject, body, patience)
	if err != nil {
		t.Fatalf("%s %s: %v", subject, body, err)
	}
	return r
}

// try sends a request that may get no answer.
func try(nc *nats.Conn, subject, body string, wait time.Duration) (r limits.Reply, err error) {
	msg, err := nc.Request(subject, []byte(body), wait)
	if err != nil {
		return r, err
	}
	if code := msg.Header.Get("Nats-Service-Error-Code"); code != "" {
		return r, fmt.Errorf("error %s %s", code, msg.Data)
	}
	return r, json.Unmarshal(msg.Data, &r)
}

// eventually waits until f returns no error.
func eventually(t testing.TB, f func() error) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
		<-time.After(20 * time.Millisecond)
	}
}
