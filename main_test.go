package limits_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"testing"

	"github.com/seed503877ad/limits/internal/app"
)

// natsURL is the NATS server of the limiter that the examples talk to.
var natsURL string

// TestMain runs a whole limiter for the examples, on ports of its own and in a folder that goes with it.
func TestMain(m *testing.M) {
	status, err := withLimiter(m.Run)
	if err != nil {
		fmt.Fprintln(os.Stderr, "run a limiter:", err)
		os.Exit(1)
	}
	os.Exit(status)
}

func withLimiter(tests func() int) (status int, err error) {
	dir, err := os.MkdirTemp("", "limits-test-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	ctx, cancel := context.WithCancel(context.Background())
	read, write := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		err := app.Run(ctx, app.Options{
			NATSListen: "127.0.0.1:0", DataDir: dir, HTTPAddr: "off", Source: "urn:limits:test",
			WarningThreshold: 0.1, OnError: "allow",
		}, slog.New(slog.NewJSONHandler(write, nil)))
		write.Close()
		ended <- err
	}()
	if natsURL = readyAt(read); natsURL != "" {
		status = tests()
	}
	cancel()
	return status, <-ended
}

// readyAt reads the log up to the ready line and gives its NATS address; what follows is thrown away.
func readyAt(log io.Reader) (url string) {
	lines := bufio.NewScanner(log)
	for lines.Scan() {
		var line struct{ Msg, NATS string }
		if json.Unmarshal(lines.Bytes(), &line) == nil && line.Msg == "ready" {
			go io.Copy(io.Discard, log)
			return line.NATS
		}
	}
	return ""
}
