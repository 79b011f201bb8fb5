package testenv

import (
	"os"
	"path/filepath"
	"testing"

	natsserver "github.com/nats-io/nats-server/v2/server"
)

// NATSConfig starts a NATS server inside the test process with the text of a configuration file, on a free port and with a
// folder of its own, and stops it when the test ends.
func NATSConfig(tb testing.TB, text string) *natsserver.Server {
	tb.Helper()
	file := filepath.Join(tb.TempDir(), "nats.conf")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		tb.Fatal(err)
	}
	o, err := natsserver.ProcessConfigFile(file)
	if err != nil {
		tb.Fatalf("testenv: configure NATS: %v", err)
	}
	o.Port, o.HTTPPort, o.StoreDir = natsserver.RANDOM_PORT, 0, tb.TempDir()
	return waitReady(tb, startServer(tb, local(o)))[0]
}
