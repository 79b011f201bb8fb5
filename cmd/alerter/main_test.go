package main

import (
	"bytes"
	"io"
	"strings"
	"syscall"
	"testing"
)

// full is an output on a disk that is full.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, syscall.ENOSPC }

func TestUnwritableOutputIsAnError(t *testing.T) {
	t.Parallel()
	for _, flag := range []string{"--help", "--version"} {
		var log bytes.Buffer
		if status := run(t.Context(), []string{flag}, full{}, &log); status != exitError ||
			log.String() != "alerter: the output is incomplete: no space left on device\n" {
			t.Errorf("%s: status %d, err %q", flag, status, &log)
		}
	}
}

func TestFlags(t *testing.T) {
	var every command
	for _, f := range parser(&every, io.Discard, io.Discard).Model.Flags { // of whoever runs the tests; an empty one is unset
		for _, name := range f.Envs {
			t.Setenv(name, "")
		}
	}
	for _, test := range []struct {
		args     string
		status   int
		out, err string
	}{
		{"--help", exitDone, "NATS server or cluster (required)", ""},
		{"--help", exitDone, "The PostgreSQL of the limiters (required)", ""},
		{"--version", exitDone, "alerter ", ""},
		{"", exitUsage, "", "alerter: missing flags: --nats-url, --database-url: an alerter works for"},
		{"--nats-url nats://127.0.0.1", exitUsage, "", "alerter: missing flags: --database-url: an alerter works for"},
		{"--nats-url nats://127.0.0.1 --database-url postgres://h/d --alerts-allow x", exitUsage, "", "--alerts-allow"},
		{"--nats-url nats://127.0.0.1 --database-url postgres://h/d --nats-creds=", exitUsage, "", "--nats-creds: is empty; omit it or give a value"},
		{"--nats-url nats://127.0.0.1 --database-url postgres://h/d --alerts=", exitUsage, "", "--alerts: is empty; omit it or give a value"},
		{"--nats-url nats://127.0.0.1 --database-url mysql://db --source %zz", exitUsage, "", "--database-url: read database URL"},
	} {
		var out, log bytes.Buffer
		status := run(t.Context(), strings.Fields(test.args), &out, &log)
		if status != test.status || !strings.Contains(out.String(), test.out) || !strings.Contains(log.String(), test.err) ||
			test.out == "" && out.Len() > 0 || test.err == "" && log.Len() > 0 {
			t.Errorf("%s: status %d, out %q, err %q; want %d, %q, %q", test.args, status, &out, &log, test.status, test.out, test.err)
		}
		if status == exitUsage && !strings.HasSuffix(log.String(), "\nsee: alerter --help\n") {
			t.Errorf("%s: err %q; want the way to --help", test.args, &log)
		}
	}
}
