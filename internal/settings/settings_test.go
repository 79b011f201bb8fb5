package settings

import (
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed503877ad/limits/internal/app"
)

// TestAlertsAllowUnmapsAddresses: the addresses of webhooks are compared as IPv4, however the list writes them.
func TestAlertsAllowUnmapsAddresses(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"10.1.2.3/8":          "10.0.0.0/8",
		"::ffff:10.0.0.0/104": "10.0.0.0/8",
		"::ffff:10.1.2.3/104": "10.0.0.0/8",
		"::ffff:0.0.0.0/96":   "0.0.0.0/0",
		"::ffff:10.0.0.1":     "10.0.0.1/32",
		" 10.0.0.1 ":          "10.0.0.1/32",
		"fd00::1/8":           "fd00::/8",
		"::1":                 "::1/128",
		"::ffff:10.0.0.0/95":  "::fffe:0:0/95",
		"::ffff:10.0.0.1/128": "10.0.0.1/32",
	} {
		var o app.Options
		if err := (&Alerts{AlertsAllow: []string{text}}).Set(&o); err != nil || o.AlertsAllow[0] != netip.MustParsePrefix(want) {
			t.Errorf("%q: %v, %v; want %s", text, o.AlertsAllow, err, want)
		}
	}
	for _, text := range []string{"", "x", "10.0.0.0/33", "::ffff:10.0.0.0/129"} {
		if err := (&Alerts{AlertsAllow: []string{text}}).Set(new(app.Options)); err == nil {
			t.Errorf("%q is taken", text)
		}
	}
}

// TestListWithoutServerIsRejected: nats.go would connect to this machine. The setting may come from a file with only a line
// end.
func TestListWithoutServerIsRejected(t *testing.T) {
	t.Parallel()
	for list, want := range map[string]bool{"": true, "nats://h:1": true, "nats://h:1, ": true, ",": false, " ": false, "\n": false, "\t,\r\n": false} {
		if err := (&NATS{NATSURL: list}).Validate(); (err == nil) != want {
			t.Errorf("%q: %v", list, err)
		}
	}
}

// TestRepeatedSignalCountsOnce: only a later signal ends the process while it drains.
func TestRepeatedSignalCountsOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		signals, ended := make(chan os.Signal, 2), false
		ctx := until(signals, func() { ended = true })
		signals <- syscall.SIGTERM
		signals <- syscall.SIGTERM
		synctest.Wait()
		if ctx.Err() == nil || ended {
			t.Errorf("%v, ended at once: %v", ctx.Err(), ended)
		}
		time.Sleep(time.Second)
		signals <- syscall.SIGINT
		synctest.Wait()
		if !ended {
			t.Error("the second one did not end it")
		}
	})
}

// TestBothLogFormatsWriteDurationsAsText: a bare number of nanoseconds has no unit.
func TestBothLogFormatsWriteDurationsAsText(t *testing.T) {
	t.Parallel()
	for format, want := range map[string]string{"text": "for=2h0m0s took=1.5s", "json": `"for":"2h0m0s","took":"1.5s"`} {
		var lines strings.Builder
		log := (&Log{LogLevel: "info", LogFormat: format}).Logger(&lines)
		log.With("for", 2*time.Hour).Info("paused", "took", 1500*time.Millisecond)
		if !strings.Contains(lines.String(), want) {
			t.Errorf("%s: %s; want %s", format, lines.String(), want)
		}
	}
}
