package bus

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/seed503877ad/limits/internal/testenv"
)

func TestEmbedConfigIsChecked(t *testing.T) {
	t.Parallel()
	for field, cfg := range map[string]EmbedConfig{
		"StoreDir": {Listen: "127.0.0.1:0", Logger: slog.New(slog.DiscardHandler)},
		"Logger":   {Listen: "127.0.0.1:0", StoreDir: t.TempDir()},
	} {
		if e, err := Embed(cfg); err == nil || !strings.Contains(err.Error(), field+" is missing") {
			t.Errorf("%s: %v", field, err)
			if err == nil {
				e.Shutdown()
			}
		}
	}
}

// TestURLOfAServerThatListensEverywhereCanBeDialed from this machine.
func TestURLOfAServerThatListensEverywhereCanBeDialed(t *testing.T) {
	t.Parallel()
	e := embed(t, "127.0.0.1:0", t.TempDir())
	port := strings.TrimPrefix(e.URL(), "nats://127.0.0.1:")
	for host, want := range map[string]string{"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "127.0.0.1",
		"::1": "[::1]", "127.0.0.2": "127.0.0.2", "localhost": "localhost"} {
		if got := (&Embedded{server: e.server, host: host}).URL(); got != "nats://"+want+":"+port {
			t.Errorf("%q: %s, want the host %s", host, got, want)
		}
	}
}

// TestAnEmbeddedServerIsCheckedAllTheTime, without anybody who asks: it closes the streams whose files are gone.
func TestAnEmbeddedServerIsCheckedAllTheTime(t *testing.T) {
	t.Parallel()
	log := &logBuffer{}
	dir := t.TempDir()
	e, err := Embed(EmbedConfig{Listen: "127.0.0.1:0", StoreDir: dir, Logger: slog.New(slog.NewTextHandler(log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Shutdown)
	stream(t, dial(t, e.URL()))
	if err := os.Rename(filepath.Join(dir, server.JetStreamStoreDir), filepath.Join(dir, "away")); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the log says that the files are gone", func() bool { return strings.Contains(log.String(), "streams are gone") })
	if e.server.JetStreamEnabled() {
		t.Error("the server goes on without the files of its streams")
	}
	if err := os.Rename(filepath.Join(dir, "away"), filepath.Join(dir, server.JetStreamStoreDir)); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the log says that the streams are open again", func() bool { return strings.Contains(log.String(), "reopened its streams") })
	if _, err := testenv.JetStream(t, dial(t, e.URL())).Stream(t.Context(), eventStream().Name); err != nil {
		t.Error(err)
	}
}
