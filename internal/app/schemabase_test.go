package app

import (
	"encoding/json"
	"log/slog"
	"net"
	"net/http"
	"os"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"github.com/seed503877ad/limits"
)

// TestSchemasAreServedWhereEventsAndEndpointsSay: a reader can follow the addresses.
func TestSchemasAreServedWhereEventsAndEndpointsSay(t *testing.T) {
	t.Parallel()
	s := running(t, Run, options(t))
	nc := s.connect(t)
	denials, err := nc.SubscribeSync(limits.EventExceeded)
	if err != nil {
		t.Fatal(err)
	}
	deny(t, limits.NewClient(nc, limits.Timeout(patience)), "k")
	event, err := denials.NextMsg(patience)
	if err != nil {
		t.Fatal(err)
	}
	var about struct{ DataSchema string }
	decode(t, event, &about)
	reply, err := nc.Request("$SRV.INFO.limits", nil, patience)
	if err != nil {
		t.Fatal(err)
	}
	var info micro.Info
	decode(t, reply, &info)
	for _, url := range []string{about.DataSchema, info.Metadata["asyncapi"], info.Endpoints[0].Metadata["request-schema"]} {
		if status, body := get(t, url); status != http.StatusOK {
			t.Errorf("%s: %d %s", url, status, body)
		}
	}
}

func decode(t *testing.T, m *nats.Msg, into any) {
	t.Helper()
	if err := json.Unmarshal(m.Data, into); err != nil {
		t.Fatalf("%s: %v", m.Data, err)
	}
}

func TestSchemaBase(t *testing.T) {
	t.Parallel()
	served := &limiter{Options: options(t), log: slog.New(slog.DiscardHandler)}
	defer func() {
		if err := served.stop(); err != nil {
			t.Error(err)
		}
	}()
	if err := served.startWeb(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		source string
		served bool
		want   string
	}{
		{"https://limits.example", true, "https://limits.example/schemas"},
		{"http://limits.example/eu/", true, "http://limits.example/eu/schemas"},
		{"https://limits.example", false, "https://limits.example/schemas"},
		{"urn:limits:test", true, "http://" + served.web.Addr() + "/schemas"},
		{"urn:limits:test", false, "urn:limits:schemas"},
	} {
		l := &limiter{Options: Options{Source: c.source}}
		if c.served {
			l.web = served.web
		}
		if got := l.schemaBase(); got != c.want {
			t.Errorf("source %s, served: %t: %s, want %s", c.source, c.served, got, c.want)
		}
	}
}

// TestReachableAddress: nobody else can use an address such as 0.0.0.0.
func TestReachableAddress(t *testing.T) {
	t.Parallel()
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	for addr, want := range map[string]string{
		"127.0.0.1:80": "127.0.0.1:80", "limits.example:80": "limits.example:80", "[::1]:80": "[::1]:80",
		"0.0.0.0:80": net.JoinHostPort(host, "80"), "[::]:80": net.JoinHostPort(host, "80"),
	} {
		if got := reachable(addr); got != want {
			t.Errorf("%s: %s, want %s", addr, got, want)
		}
	}
}
