// Package settings has the flags that both programs share, with the environment variables of the same names. It also has what
// else a program does around its work: the logger, the version, signals and the exit status. The flags are structs with tags
// for kong.
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

// NATS is the flags for the connection to NATS. A program that embeds it says with the tag set:"unset=..." what happens without
// a URL.
type NATS struct {
	NATSURL     string `name:"nats-url" env:"NATS_URL" placeholder:"URL" help:"NATS server or cluster (${unset})."`
	NATSCreds   string `name:"nats-creds" env:"NATS_CREDS" type:"existingfile" placeholder:"FILE" help:"NATS credentials: JWT and nkey seed, or the seed alone."`
	NATSTLSCA   string `name:"nats-tls-ca" env:"NATS_TLS_CA" type:"existingfile" placeholder:"FILE" help:"PEM of the authorities that may vouch for the NATS server."`
	NATSTLSCert string `name:"nats-tls-cert" env:"NATS_TLS_CERT" type:"existingfile" placeholder:"FILE" help:"PEM of the client certificate."`
	NATSTLSKey  string `name:"nats-tls-key" env:"NATS_TLS_KEY" type:"existingfile" placeholder:"FILE" help:"PEM of its key."`
	InboxPrefix string `name:"nats-inbox-prefix" env:"NATS_INBOX_PREFIX" placeholder:"SUBJECT" help:"What the subjects of answers begin with, where permissions give each role its own (_INBOX)."`
}

// inboxPrefix matches words separated by dots, without the wildcards and spaces that no subject may have.
var inboxPrefix = regexp.MustCompile(`^[0-9A-Za-z_-]+(\.[0-9A-Za-z_-]+)*$`)

// Validate checks what the tags cannot. An inbox must not be below limits or alerts, where services and streams listen, because
// answers are never sent there.
func (f *NATS) Validate() error {
	if (f.NATSTLSCert == "") != (f.NATSTLSKey == "") {
		return errors.New("--nats-tls-cert and --nats-tls-key must be set together; one of them is missing")
	}
	if f.NATSURL != "" && strings.TrimSpace(strings.ReplaceAll(f.NATSURL, ",", " ")) == "" {
		return fmt.Errorf("--nats-url: %q contains no server; want one such as nats://127.0.0.1:4222", f.NATSURL) // nats.go would connect to this machine
	}
	if err := redact.CheckServers(f.NATSURL); err != nil {
		return fmt.Errorf("--nats-url: %w", err)
	}
	if f.InboxPrefix == "" {
		return nil
	}
	first, _, _ := strings.Cut(f.InboxPrefix, ".")
	if !inboxPrefix.MatchString(f.InboxPrefix) || first == "limits" || first == "alerts" {
		return fmt.Errorf("--nats-inbox-prefix: %q cannot be a prefix of reply subjects; want one such as _INBOX_check", f.InboxPrefix)
	}
	return nil
}

// Set copies the flags into options.
func (f *NATS) Set(o *app.Options) {
	o.NATSURL, o.NATSCreds, o.NATSInboxPrefix = f.NATSURL, f.NATSCreds, f.InboxPrefix
	o.NATSTLSCA, o.NATSTLSCert, o.NATSTLSKey = f.NATSTLSCA, f.NATSTLSCert, f.NATSTLSKey
}

// CheckAddress checks that the value of a flag is a host:port to listen on, such as example, or one of some words.
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

// MaxDays is the largest number of days that a flag accepts: a hundred years.
const MaxDays = 36_500

// Jobs is the flags for when jobs run and how long data is kept.
type Jobs struct {
	CleanupEvery    time.Duration `name:"cleanup-every" env:"CLEANUP_EVERY" default:"60s" placeholder:"DURATION" help:"How often expired counters are removed; 0 for only by: limiter jobs run expire (${default})."`
	UsageMinuteDays int           `name:"usage-minute-days" env:"USAGE_MINUTE_DAYS" default:"2" placeholder:"N" help:"After how many days usage is kept by the hour instead of the minute; 0 for never (${default})."`
	UsageDays       int           `name:"usage-days" env:"USAGE_DAYS" default:"90" placeholder:"N" help:"After how many days usage is removed; 0 for never (${default})."`
	RequestDays     int           `name:"request-days" env:"REQUEST_DAYS" default:"30" placeholder:"N" help:"After how many days the request log is removed; 0 for never (${default})."`
	JobDays         int           `name:"job-days" env:"JOB_DAYS" default:"14" placeholder:"N" help:"After how many days the history of jobs is removed; 0 for never (${default})."`
	AlertDays       int           `name:"alert-days" env:"ALERT_DAYS" default:"30" placeholder:"N" help:"After how many days resolved alerts, what was sent, and dead letters are removed; 0 for never (${default})."`
}

// Validate checks what the tags cannot.
func (f *Jobs) Validate() error {
	if f.CleanupEvery != 0 && (f.CleanupEvery < time.Second || f.CleanupEvery > 24*time.Hour) {
		return fmt.Errorf("--cleanup-every: %s is neither 0 nor between 1s and 24h; want one such as 60s", f.CleanupEvery)
	}
	if f.CleanupEvery%time.Second != 0 {
		return fmt.Errorf("--cleanup-every: %s is not a whole number of seconds; want one such as 60s", f.CleanupEvery)
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

// Set copies the flags into options.
func (f *Jobs) Set(o *app.Options) {
	o.CleanupEvery, o.UsageMinuteDays = f.CleanupEvery, f.UsageMinuteDays
	o.UsageDays, o.RequestDays, o.JobDays, o.AlertDays = f.UsageDays, f.RequestDays, f.JobDays, f.AlertDays
}

// Alerts is the flags for alerts.
type Alerts struct {
	Alerts      string   `name:"alerts" env:"ALERTS" type:"path" placeholder:"FILE" help:"Alerts file (YAML); read again when it changes and on SIGHUP. Without it 5 denials in 10 minutes raise an alert, on the NATS subject alerts.raised and in the log."`
	AlertsAllow []string `name:"alerts-allow" env:"ALERTS_ALLOW" placeholder:"PREFIX" help:"Private, loopback or link-local addresses that webhooks may lead to, such as 10.0.0.0/8,127.0.0.1; none unless set."`
}

// Set copies the flags into options.
func (f *Alerts) Set(o *app.Options) error {
	o.Alerts = f.Alerts
	for _, text := range f.AlertsAllow {
		prefix, err := parsePrefix(strings.TrimSpace(text))
		if err != nil {
			return fmt.Errorf("--alerts-allow: %q is not an address or a prefix; want one such as 127.0.0.1 or 10.0.0.0/8", text)
		}
		o.AlertsAllow = append(o.AlertsAllow, prefix)
	}
	return nil
}

// parsePrefix parses a prefix or a single address. ::ffff:10.0.0.0/104 becomes 10.0.0.0/8, because it is compared with unmapped
// addresses. A prefix wider than ::ffff:0:0/96 stays one of IPv6.
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

// Log is the flags for logging.
type Log struct {
	LogLevel  string `name:"log-level" env:"LOG_LEVEL" enum:"debug,info,warn,error" default:"info" help:"One of ${enum} (${default})."`
	LogFormat string `name:"log-format" env:"LOG_FORMAT" enum:"text,json" default:"text" help:"One of ${enum} (${default})."`
}

// Logger returns a logger that writes to w.
func (f *Log) Logger(w io.Writer) *slog.Logger {
	var l slog.Level
	_ = l.UnmarshalText([]byte(f.LogLevel)) // never fails: kong has checked the enum
	o := &slog.HandlerOptions{Level: l}
	if f.LogFormat == "json" {
		o.ReplaceAttr = durationAsText
		return slog.New(slog.NewJSONHandler(w, o))
	}
	return slog.New(slog.NewTextHandler(w, o))
}

// durationAsText writes durations in JSON as text, such as "1.5s". The handler itself would write nanoseconds without a unit.
func durationAsText(_ []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() == slog.KindDuration {
		a.Value = slog.StringValue(a.Value.Duration().String())
	}
	return a
}

// Version identifies the build: release, which the linker puts into main.version, or else the module version or commit that the
// Go tool recorded.
func Version(release string) string {
	info, ok := debug.ReadBuildInfo()
	if release != "" || !ok {
		return cmp.Or(release, "(devel)")
	}
	return cmp.Or(info.Main.Version, "(devel)")
}

// sameSignal is how soon after the first signal another one counts as the same: timeout(1) sends its signal to the process, and
// then also to its process group.
const sameSignal = 500 * time.Millisecond

// UntilSignal returns a context that ends at the first SIGINT or SIGTERM, so that the program drains. A second signal exits the
// process at once, with the status.
func UntilSignal(status int) context.Context {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	return until(signals, func() {
		fmt.Fprintln(os.Stderr, "stopped at once by a second signal; work in progress was not finished")
		os.Exit(status)
	})
}

// until returns a context that ends at the first signal. It calls exit at the second.
func until(signals <-chan os.Signal, exit func()) context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		<-signals
		first := time.Now()
		cancel()
		for range signals {
			if time.Since(first) >= sameSignal {
				exit()
				return
			}
		}
	}()
	return ctx
}

// exitNow carries the status with which kong wants to exit, after --help or --version, from [Exit] to [Exited].
type exitNow int

// Exit is for kong.Exit, which must not return. It panics, and [Exited] recovers, so that main ends the process.
func Exit(code int) { panic(exitNow(code)) }

// Exited is deferred around parsing with kong. It sets the status if kong has called [Exit].
func Exited(status *int) {
	switch p := recover().(type) {
	case nil:
	case exitNow:
		*status = int(p)
	default:
		panic(p)
	}
}
