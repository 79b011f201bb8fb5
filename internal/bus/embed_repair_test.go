package bus

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/testenv"
)

// embedUnrepaired starts a server with the stream of events. Only the test repairs it.
func embedUnrepaired(t *testing.T, log *logBuffer) (*Embedded, jetstream.JetStream) {
	t.Helper()
	e, err := Embed(EmbedConfig{Listen: "127.0.0.1:0", StoreDir: filepath.Join(t.TempDir(), "nats"),
		Logger: slog.New(slog.NewTextHandler(log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Shutdown)
	e.repairer.stopRepair()
	e.repairer.stop, e.repairer.stopped = func() {}, make(chan struct{})
	if e.repairer.root, err = os.Open(e.server.StoreDir()); err != nil {
		t.Fatal(err)
	}
	close(e.repairer.stopped)
	js := testenv.JetStream(t, dial(t, e.URL()))
	if _, err := ensureStream(t.Context(), js, eventStream()); err != nil {
		t.Fatal(err)
	}
	return e, js
}

// storedEvents returns how many events the stream has.
func storedEvents(t *testing.T, js jetstream.JetStream) uint64 {
	t.Helper()
	stream, err := js.Stream(t.Context(), eventStream().Name)
	if err != nil {
		t.Fatal(err)
	}
	return stream.CachedInfo().State.Msgs
}

// TestUnwritableStreamsAreReopened removes the folder of the streams from under the server, which
// then takes no events, not even after the folder is back.
func TestUnwritableStreamsAreReopened(t *testing.T) {
	t.Parallel()
	var log logBuffer
	e, js := embedUnrepaired(t, &log)
	dir := e.repairer.dir
	publish := func(id string, size int, within time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), within)
		defer cancel()
		_, err := js.Publish(ctx, limits.EventWarning, make([]byte, size), jetstream.WithMsgID(id))
		return errors.Join(err, js.Conn().Flush()) // so that the server does not read what was given up later
	}
	const patience, impatience = 20 * time.Second, 300 * time.Millisecond
	if err := publish("first", 1, patience); err != nil {
		t.Fatal(err)
	}
	e.repairer.repair()
	if log.String() != "" {
		t.Errorf("all is well, and the log says\n%s", &log)
	}

	messages := filepath.Join(dir, "jetstream", "$G", "streams", eventStream().Name, "msgs")
	if err := os.Rename(messages, messages+".gone"); err != nil {
		t.Fatal(err)
	}
	e.repairer.dir = filepath.Join(dir, "missing") // as if there were no room
	// Until the server needs another file.
	for problem := ""; problem == ""; problem, _ = e.repairer.healthError() {
		_ = publish("", maxMessage-1000, impatience) // with room for headers
	}
	before := storedEvents(t, js)
	for range 4 { // the first waits for the second
		e.repairer.repair()
	}
	if n := strings.Count(log.String(), "cannot write its streams"); n != 1 {
		t.Errorf("said %d times that there is nowhere to write, want once:\n%s", n, &log)
	}
	_ = os.RemoveAll(messages) // what the server may have begun there
	if err := os.Rename(messages+".gone", messages); err != nil {
		t.Fatal(err)
	}
	e.repairer.dir = dir
	if publish("before", 1, impatience) == nil {
		t.Fatal("the server takes events again by itself: mending is needless")
	}
	e.repairer.repair()
	if !strings.Contains(log.String(), "reopened its streams") {
		t.Errorf("the log does not say that the streams are open again:\n%s", &log)
	}
	for _, id := range []string{"first", "after"} { // the first is a repeat
		if err := publish(id, 1, patience); err != nil {
			t.Errorf("publish %s: %v", id, err)
		}
	}
	if n := storedEvents(t, js); n != before+1 {
		t.Errorf("%d events in the stream, want the %d before and one after", n, before)
	}
}

// TestCreatingAndDeletingStreamsReopensNothing: reopening loses streams in memory.
func TestCreatingAndDeletingStreamsReopensNothing(t *testing.T) {
	t.Parallel()
	var log logBuffer
	e, js := embedUnrepaired(t, &log)
	config := jetstream.StreamConfig{Name: "own", Subjects: []string{"own"}, Storage: jetstream.MemoryStorage}
	if _, err := js.CreateStream(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	folder := func(name string) string {
		dir := filepath.Join(e.repairer.dir, "jetstream", "$G", "streams", name)
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	folder(".deleted") // as long as the server removes what is in it
	e.repairer.repair()
	e.repairer.repair()
	for range 3 {
		dir := folder("coming") // is there before the stream is
		e.repairer.repair()
		if err := os.Remove(dir); err != nil {
			t.Fatal(err)
		}
		e.repairer.repair()
	}
	if _, err := js.Stream(t.Context(), config.Name); err != nil || log.String() != "" {
		t.Errorf("%v; the log says\n%s", err, &log)
	}
	folder("empty") // as of a stream that could not be created
	e.repairer.repair()
	e.repairer.repair()
	if log.String() != "" {
		t.Errorf("an empty folder is taken for a stream:\n%s", &log)
	}
	for times := range 2 { // what was told of and has ended is told of again
		broken := folder("broken")
		if err := os.WriteFile(filepath.Join(broken, "meta.inf"), []byte("no stream"), 0o600); err != nil {
			t.Fatal(err)
		}
		e.repairer.repair()
		e.repairer.repair()
		if _, err := js.AccountInfo(t.Context()); err != nil { // see below
			t.Fatal(err)
		}
		if n := strings.Count(log.String(), "restart the limiter"); n != times+1 {
			t.Errorf("a complaint that stands is told of %d times, want %d:\n%s", n, times+1, &log)
		}
		if err := os.RemoveAll(broken); err != nil {
			t.Fatal(err)
		}
		e.repairer.repair()
		// The server begins goroutines when it opens its streams, which read what it writes when it opens them again (nats-server 2.15).
		if _, err := js.AccountInfo(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// TestAServerThatDoesNotSayHowItsStreamsAreIsNotHealthy: what was found before stands, or streams that nothing can mend
// would be reopened again, which loses those in memory.
func TestAServerThatDoesNotSayHowItsStreamsAreIsNotHealthy(t *testing.T) {
	t.Parallel()
	var log logBuffer
	e, _ := embedUnrepaired(t, &log) // its client keeps the server from ending at once
	broken := filepath.Join(e.repairer.dir, "jetstream", "$G", "streams", "broken")
	if err := os.Mkdir(broken, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(broken, "meta.inf"), []byte("no stream"), 0o600); err != nil {
		t.Fatal(err)
	}
	e.repairer.repair()
	e.repairer.repair()
	before := log.String()
	if !strings.Contains(before, "restart the limiter") || len(e.repairer.tolerated) != 1 {
		t.Fatalf("tolerates %v, and the log says\n%s", e.repairer.tolerated, before)
	}
	go e.server.LameDuckShutdown() // until it has no listener, and then for seconds, it says only that
	for {
		if _, known := healthErrors(e.server); !known {
			break
		}
	}
	e.repairer.repair()
	if len(e.repairer.tolerated) != 1 || e.repairer.lastLogged == "" {
		t.Errorf("tolerates %v, and would tell again of what it has told: the log says\n%s", e.repairer.tolerated, &log)
	}
}

// TestStreamsWithMissingFilesAcknowledgeNothing: the server would go on writing to files that
// nobody can find any more.
func TestStreamsWithMissingFilesAcknowledgeNothing(t *testing.T) {
	t.Parallel()
	for name, gone := range map[string]func(dir string) string{
		"all":        func(dir string) string { return dir },
		"one stream": func(dir string) string { return filepath.Join(dir, "jetstream", "$G", "streams", limits.EventStream) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var log logBuffer
			e, js := embedUnrepaired(t, &log)
			publish := func(within time.Duration) error {
				ctx, cancel := context.WithTimeout(t.Context(), within)
				defer cancel()
				_, err := js.Publish(ctx, limits.EventWarning, nil)
				return errors.Join(err, js.Conn().Flush()) // so that the server does not read what was given up later
			}
			if err := publish(20 * time.Second); err != nil {
				t.Fatal(err)
			}
			path := gone(e.repairer.dir)
			if err := os.Rename(path, path+".moved"); err != nil {
				t.Fatal(err)
			}
			for range 4 {
				e.repairer.repair()
			}
			if publish(300*time.Millisecond) == nil {
				t.Error("an event was acknowledged that nobody finds again")
			}
			if n := strings.Count(log.String(), "streams are gone"); n != 1 {
				t.Errorf("said %d times that files are gone, want once:\n%s", n, &log)
			}
			_ = os.RemoveAll(path) // what the server may have begun there
			if err := os.Rename(path+".moved", path); err != nil {
				t.Fatal(err)
			}
			e.repairer.repair()
			if !strings.Contains(log.String(), "reopened its streams") {
				t.Errorf("the log does not say that the streams are open again:\n%s", &log)
			}
			if err := publish(20 * time.Second); err != nil {
				t.Error(err)
			}
			if s, err := js.Stream(t.Context(), limits.EventStream); err != nil || s.CachedInfo().State.Msgs != 2 {
				t.Errorf("%+v, %v; want the event before and the one after", s.CachedInfo().State, err)
			}
		})
	}
}
