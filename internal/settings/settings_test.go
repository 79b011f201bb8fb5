package settings

import (
	"net/netip"
	"os"
	"reflect"
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
		"2001:db8::/100":      "2001:db8::/100",
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

// TestInboxPrefixIsNotWhereServicesListen: answers would be taken for requests or events.
func TestInboxPrefixIsNotWhereServicesListen(t *testing.T) {
	t.Parallel()
	for prefix, want := range map[string]bool{"": true, "_INBOX": true, "_INBOX_check.a-1": true, "limitsx": true, "limits": false, "limits.x": false,
		"alerts": false, "alerts.x": false, "a.": false, "a..b": false, "a.>": false, "a b": false, "a*": false} {
		if err := (&NATS{InboxPrefix: prefix}).Validate(); (err == nil) != want {
			t.Errorf("%q: %v", prefix, err)
		}
	}
}

// TestBoundsOfJobs: every number of days is checked, and its error names the flag.
func TestBoundsOfJobs(t *testing.T) {
	t.Parallel()
	for flag, of := range map[string]func(*Jobs) *int{
		"--usage-minute-days": func(f *Jobs) *int { return &f.UsageMinuteDays }, "--usage-days": func(f *Jobs) *int { return &f.UsageDays },
		"--request-days": func(f *Jobs) *int { return &f.RequestDays }, "--job-days": func(f *Jobs) *int { return &f.JobDays },
		"--alert-days": func(f *Jobs) *int { return &f.AlertDays },
	} {
		for days, want := range map[int]bool{-1: false, 0: true, MaxDays: true, MaxDays + 1: false} {
			var f Jobs
			*of(&f) = days
			if err := f.Validate(); (err == nil) != want || err != nil && !strings.HasPrefix(err.Error(), flag+": ") {
				t.Errorf("%s %d: %v", flag, days, err)
			}
		}
	}
	for every, want := range map[time.Duration]bool{0: true, time.Second: true, 24 * time.Hour: true, -time.Second: false,
		time.Second / 2: false, 1500 * time.Millisecond: false, 24*time.Hour + time.Second: false} {
		if err := (&Jobs{CleanupEvery: every}).Validate(); (err == nil) != want {
			t.Errorf("--cleanup-every %s: %v", every, err)
		}
	}
}

// TestFlagsSetTheirOptions, each its own.
func TestFlagsSetTheirOptions(t *testing.T) {
	t.Parallel()
	var got app.Options
	(&NATS{NATSURL: "url", NATSCreds: "creds", NATSTLSCA: "ca", NATSTLSCert: "cert", NATSTLSKey: "key", InboxPrefix: "inbox"}).Set(&got)
	(&Jobs{CleanupEvery: 1, UsageMinuteDays: 2, UsageDays: 3, RequestDays: 4, JobDays: 5, AlertDays: 6}).Set(&got)
	if err := (&Alerts{Alerts: "file"}).Set(&got); err != nil {
		t.Fatal(err)
	}
	want := app.Options{NATSURL: "url", NATSCreds: "creds", NATSTLSCA: "ca", NATSTLSCert: "cert", NATSTLSKey: "key", NATSInboxPrefix: "inbox",
		CleanupEvery: 1, UsageMinuteDays: 2, UsageDays: 3, RequestDays: 4, JobDays: 5, AlertDays: 6, Alerts: "file"}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestReleaseIsTheVersion(t *testing.T) {
	t.Parallel()
	if got := Version("v1.2.3"); got != "v1.2.3" {
		t.Error(got)
	}
	if Version("") == "" {
		t.Error("a build without a release has no version")
	}
}

// TestRepeatedSignalCountsOnce: only a later signal ends the process while it drains.
func TestRepeatedSignalCountsOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		signals, ended := make(chan os.Signal, 2), false
		ctx := until(signals, func() { ended = true })
		synctest.Wait()
		if ctx.Err() != nil {
			t.Error("it ended without a signal")
		}
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

func TestLogLevel(t *testing.T) {
	t.Parallel()
	for level, want := range map[string]int{"debug": 4, "info": 3, "warn": 2, "error": 1} {
		var lines strings.Builder
		log := (&Log{LogLevel: level, LogFormat: "text"}).Logger(&lines)
		log.Debug("a")
		log.Info("b")
		log.Warn("c")
		log.Error("d")
		if got := strings.Count(lines.String(), "\n"); got != want {
			t.Errorf("%s: %d lines, want %d\n%s", level, got, want, lines.String())
		}
	}
}
