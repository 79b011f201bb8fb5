// Package settings holds the flags that both programs have, with the environment variables of the same names, and what
// else a program does around its work: its logger, its version, what signals mean, and how it exits. The flags are structs
// whose tags kong reads.
package settings

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"regexp"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/seed503877ad/limits/internal/app"
	"github.com/seed503877ad/limits/internal/redact"
)

// NATS says how to reach a NATS server. What holds without its URL is said by a tag where it is embedded: set:"unset=…".
type NATS struct {
	NATSURL     string `name:"nats-url" env:"NATS_URL" placeholder:"URL" help:"NATS server or cluster (${unset})."`
	NATSCreds   string `name:"nats-creds" env:"NATS_CREDS" type:"existingfile" placeholder:"FILE" help:"NATS credentials."`
	NATSTLSCA   string `name:"nats-tls-ca" env:"NATS_TLS_CA" type:"existingfile" placeholder:"FILE" help:"PEM of the authorities that may vouch for the NATS server."`
	NATSTLSCert string `name:"nats-tls-cert" env:"NATS_TLS_CERT" type:"existingfile" placeholder:"FILE" help:"PEM of the client certificate."`
	NATSTLSKey  string `name:"nats-tls-key" env:"NATS_TLS_KEY" type:"existingfile" placeholder:"FILE" help:"PEM of its key."`
	InboxPrefix string `name:"nats-inbox-prefix" env:"NATS_INBOX_PREFIX" placeholder:"SUBJECT" help:"What the subjects of answers begin with, where permissions give each role its own (_INBOX)."`
}

// An inbox prefix is made of words with dots between; a wildcard or a space in it would be no subject.
var inboxPrefix = regexp.MustCompile(`^[0-9A-Za-z_-]+(\.[0-9A-Za-z_-]+)*$`)

// Validate holds what the tags cannot. Answers are not sent below limits and alerts, where services and streams listen.
func (f *NATS) Validate() error {
	if (f.NATSTLSCert == "") != (f.NATSTLSKey == "") {
		return errors.New("--nats-tls-cert and --nats-tls-key belong together; one of them is missing")
	}
	if f.NATSURL != "" && strings.TrimSpace(strings.ReplaceAll(f.NATSURL, ",", " ")) == "" {
		return fmt.Errorf("--nats-url: %q names no server; want one such as nats://127.0.0.1:4222", f.NATSURL) // nats.go would take one on this machine
	}
	if err := redact.CheckServers(f.NATSURL); err != nil {
		return fmt.Errorf("--nats-url: %w", err)
	}
	if f.InboxPrefix == "" {
		return nil
	}
	first, _, _ := strings.Cut(f.InboxPrefix, ".")
	if !inboxPrefix.MatchString(f.InboxPrefix) || first == "limits" || first == "alerts" {
		return fmt.Errorf("--nats-inbox-prefix: %q cannot begin the subject of an answer; want one such as _INBOX_check", f.InboxPrefix)
	}
	return nil
}

// Set puts the flags into options.
func (f *NATS) Set(o *app.Options) {
	o.NATSURL, o.NATSCreds, o.NATSInboxPrefix = f.NATSURL, f.NATSCreds, f.InboxPrefix
	o.NATSTLSCA, o.NATSTLSCert, o.NATSTLSKey = f.NATSTLSCA, f.NATSTLSCert, f.NATSTLSKey
}

// CheckAddress holds that a flag is a host and a port to listen on, such as the example, or one of other words.
func CheckAddress(flag, address, example string, words ...string) error {
	if slices.Contains(words, address) {
		return nil
	}
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("%s: %q is not host:port, such as %s", flag, address, example)
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return fmt.Errorf("%s: the port of %q is not a number from 0 to 65535; want an address such as %s", flag, address, example)
	}
	return nil
}

// MaxDays is a hundred years, the most that a number of days may be.
const MaxDays = 36_500

// Jobs say when jobs run and what they leave.
type Jobs struct {
	CleanupEvery    time.Duration `name:"cleanup-every" env:"CLEANUP_EVERY" default:"60s" placeholder:"DURATION" help:"How often expired counters are removed; 0 for only by: limiter jobs run expire (${default})."`
	UsageMinuteDays int           `name:"usage-minute-days" env:"USAGE_MINUTE_DAYS" default:"2" placeholder:"N" help:"After how many days usage is kept by the hour instead of the minute; 0 for never (${default})."`
	UsageDays       int           `name:"usage-days" env:"USAGE_DAYS" default:"90" placeholder:"N" help:"After how many days usage is removed; 0 for never (${default})."`
	RequestDays     int           `name:"request-days" env:"REQUEST_DAYS" default:"30" placeholder:"N" help:"After how many days the request log is removed; 0 for never (${default})."`
	JobDays         int           `name:"job-days" env:"JOB_DAYS" default:"14" placeholder:"N" help:"After how many days the history of jobs is removed; 0 for never (${default})."`
	AlertDays       int           `name:"alert-days" env:"ALERT_DAYS" default:"30" placeholder:"N" help:"After how many days resolved alerts, what was sent, and dead letters are removed; 0 for never (${default})."`
}

// Validate holds what the tags cannot.
func (f *Jobs) Validate() error {
	if f.CleanupEvery != 0 && (f.CleanupEvery < time.Second || f.CleanupEvery > 24*time.Hour) {
		return fmt.Errorf("--cleanup-every: %s is neither 0 nor between 1s and 24h; want one such as 60s", f.CleanupEvery)
	}
	if f.CleanupEvery%time.Second != 0 {
		return fmt.Errorf("--cleanup-every: %s is no whole number of seconds; want one such as 60s", f.CleanupEvery)
	}
	for _, d := range []struct {
		flag string
		days int
	}{{"usage-minute-days", f.UsageMinuteDays}, {"usage-days", f.UsageDays}, {"request-days", f.RequestDays}, {"job-days", f.JobDays},
		{"alert-days", f.AlertDays}} {
		if d.days < 0 || d.days > MaxDays {
			return fmt.Errorf("--%s: %d is not between 0 and %d days; want a number such as 90, or 0 for never", d.flag, d.days, MaxDays)
		}
	}
	return nil
}

// Set puts the flags into options.
func (f *Jobs) Set(o *app.Options) {
	o.CleanupEvery, o.UsageMinuteDays = f.CleanupEvery, f.UsageMinuteDays
	o.UsageDays, o.RequestDays, o.JobDays, o.AlertDays = f.UsageDays, f.RequestDays, f.JobDays, f.AlertDays
}

// Alerts say who is told of what.
type Alerts struct {
	Alerts      string   `name:"alerts" env:"ALERTS" type:"path" placeholder:"FILE" help:"Alerts file (YAML); read again when it changes and on SIGHUP. Without it 5 denials in 10 minutes raise an alert, on the NATS subject alerts.raised and in the log."`
	AlertsAllow []string `name:"alerts-allow" env:"ALERTS_ALLOW" placeholder:"PREFIX" help:"Private, loopback or link-local addresses that webhooks may lead to, such as 10.0.0.0/8,127.0.0.1; none unless set."`
}

// Set puts the flags into options.
func (f *Alerts) Set(o *app.Options) error {
	o.Alerts = f.Alerts
	for _, text := range f.AlertsAllow {
		prefix, err := parsePrefix(strings.TrimSpace(text))
		if err != nil {
			return fmt.Errorf("--alerts-allow: %q is no address and no prefix; want one such as 127.0.0.1 or 10.0.0.0/8", text)
		}
		o.AlertsAllow = append(o.AlertsAllow, prefix)
	}
	return nil
}

// parsePrefix reads a prefix, or one address. It gives ::ffff:10.0.0.0/104 as 10.0.0.0/8, since it is compared with addresses that
// are unmapped; one that is wider than the mapped addresses stays a prefix of IPv6.
func parsePrefix(text string) (netip.Prefix, error) {
	if strings.Contains(text, "/") {
		p, err := netip.ParsePrefix(text)
		if a := p.Addr(); a.Is4In6() && p.Bits() >= 96 {
			p = netip.PrefixFrom(a.Unmap(), p.Bits()-96)
		}
		return p.Masked(), err
	}
	a, err := netip.ParseAddr(text)
	a = a.Unmap()
	return netip.PrefixFrom(a, a.BitLen()), err
}

// Log says what is logged and how.
type Log struct {
	LogLevel  string `name:"log-level" env:"LOG_LEVEL" enum:"debug,info,warn,error" default:"info" help:"One of ${enum} (${default})."`
	LogFormat string `name:"log-format" env:"LOG_FORMAT" enum:"text,json" default:"text" help:"One of ${enum} (${default})."`
}

// Logger makes the logger.
func (f *Log) Logger(w io.Writer) *slog.Logger {
	var l slog.Level
	_ = l.UnmarshalText([]byte(f.LogLevel)) // one of the enum
	o := &slog.HandlerOptions{Level: l}
	if f.LogFormat == "json" {
		o.ReplaceAttr = durationAsText
		return slog.New(slog.NewJSONHandler(w, o))
	}
	return slog.New(slog.NewTextHandler(w, o))
}

// durationAsText lets JSON have durations as text has them: the handler's own way is a number of nanoseconds, without a unit.
func durationAsText(_ []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() == slog.KindDuration {
		a.Value = slog.StringValue(a.Value.Duration().String())
	}
	return a
}

// Version names the build: the release, which the linker put into main.version, else the module's version or commit as the
// Go tool knows it.
func Version(release string) string {
	info, ok := debug.ReadBuildInfo()
	if release != "" || !ok {
		return cmp.Or(release, "(devel)")
	}
	return cmp.Or(info.Main.Version, "(devel)")
}

// repeat is how soon behind the first signal another one is no second one: timeout(1) sends its signal to the process, and then to
// the group that it is in.
const repeat = 500 * time.Millisecond

// UntilSignal gives a context that the first signal ends, so that the program drains; the second ends the process with a
// status.
func UntilSignal(status int) context.Context {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	return until(signals, func() {
		fmt.Fprintln(os.Stderr, "ended at once by a second signal; what was under way is not done")
		os.Exit(status)
	})
}

func until(signals <-chan os.Signal, end func()) context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		<-signals
		first := time.Now()
		cancel()
		for range signals {
			if time.Since(first) >= repeat {
				end()
				return
			}
		}
	}()
	return ctx
}

// exitNow carries the status with which kong wants to leave, after --help or --version, from [Exit] to [Exited].
type exitNow int

// Exit is for kong.Exit, which must not come back; it leaves the process to main.
func Exit(code int) { panic(exitNow(code)) }

// Exited is deferred where kong parses, and gives the status with which kong wants to leave, if it does.
func Exited(status *int) {
	switch p := recover().(type) {
	case nil:
	case exitNow:
		*status = int(p)
	default:
		panic(p)
	}
}
