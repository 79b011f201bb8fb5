// Package app puts the parts together: it reads no flags, but takes Options, starts every part in order, and stops them in
// reverse. The data folder has two files of its own: limits.lock, and the hash.key that it makes where none is set.
package app

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"syscall"
	"time"

	"github.com/seed503877ad/limits/internal/bus"
	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/keys"
	"github.com/seed503877ad/limits/internal/postgres"
)

// Options is everything that can be set from outside, with the names of the settings that set it.
type Options struct {
	// NATSURL (NATS_URL) is the NATS cluster; empty embeds a server.
	NATSURL string
	// NATSListen (NATS_LISTEN) is where the embedded server listens; port 0 picks a free one.
	NATSListen string
	// NATSCreds (NATS_CREDS) is a credentials file for NATSURL.
	NATSCreds string
	// NATSTLSCA, NATSTLSCert, NATSTLSKey (NATS_TLS_CA, …) are PEM files for NATSURL.
	NATSTLSCA, NATSTLSCert, NATSTLSKey string
	// NATSInboxPrefix (NATS_INBOX_PREFIX) is what the subjects of answers begin with; empty is "_INBOX".
	NATSInboxPrefix string
	// DatabaseURL (DATABASE_URL) is a PostgreSQL server; empty keeps a SQLite file in DataDir.
	DatabaseURL string
	// DataDir (DATA_DIR) holds the SQLite file and the embedded server's streams.
	DataDir string
	// HTTPAddr (HTTP_ADDR) is where health, metrics and schemas are served; "off" serves none.
	HTTPAddr string
	// Source (SOURCE) is the CloudEvents source: a URI that names this service.
	Source string
	// WarningThreshold (WARNING_THRESHOLD) is the part of a limit at or below which a warning is raised, 0 to 1.
	WarningThreshold float64
	// OnError (ON_ERROR) is what to answer when the store fails: allow, which is so unless set, deny, local.
	OnError string
	// KeyPrefix (KEY_PREFIX) begins the API keys that are made; "lim" unless set.
	KeyPrefix string
	// Policies (POLICIES) is the policy file; empty for none.
	Policies string
	// HashKey (HASH_KEY) is the key of the filter hash in policies, 16 bytes or more. Empty with SQLite: one is made
	// and kept in DataDir. Empty with PostgreSQL: policies that hash are refused, because workers must share it.
	HashKey string
	// CleanupEvery (CLEANUP_EVERY) is how often expired counters and receipts are removed; 0 for only when asked.
	CleanupEvery time.Duration
	// UsageMinuteDays (USAGE_MINUTE_DAYS) is after how many days usage is kept by the hour instead of the minute, UsageDays
	// (USAGE_DAYS), RequestDays (REQUEST_DAYS) and JobDays (JOB_DAYS) after how many usage, the request log and the runs
	// of jobs are removed; 0 for never.
	UsageMinuteDays, UsageDays, RequestDays, JobDays int
	// Alerter (ALERTER) says whether alerts and jobs run in a limiter: "on", "off", or "auto", which is unless NATSURL and
	// DatabaseURL are both set. Without DatabaseURL jobs run in any case.
	Alerter string
	// Alerts (ALERTS) is the alerts file; empty for the built-in rule.
	Alerts string
	// AlertsAllow (ALERTS_ALLOW) are the private addresses that webhooks may lead to.
	AlertsAllow []netip.Prefix
	// AlertDays (ALERT_DAYS) is after how many days what alerts leave is removed; 0 for never.
	AlertDays int
	// Busy is called while alerts make more work beside requests than usual. It does not block. Nothing is called unless set.
	Busy func()
	// Version is the program's version.
	Version string

	// onError is OnError, as check has read it.
	onError engine.OnError
}

// ErrOptions says that nothing was started, because of options that cannot be worked with.
var ErrOptions = errors.New("wrong settings")

// check reads what is text, and tells of all that can be seen without connecting to anything and without reading a file.
func (o *Options) check() error {
	var all []error
	wrong := func(flag string, err error) {
		if err != nil {
			all = append(all, fmt.Errorf("%s: %w", flag, err))
		}
	}
	wrong("--source", bus.CheckSource(o.Source))
	if !(o.WarningThreshold >= 0 && o.WarningThreshold <= 1) { // NaN too
		wrong("--warning-threshold", fmt.Errorf("%v is not between 0 and 1; want one such as 0.1", o.WarningThreshold))
	}
	if o.OnError != "" {
		var err error
		o.onError, err = engine.ParseOnError(o.OnError)
		wrong("--on-error", err)
	}
	if o.DatabaseURL != "" {
		wrong("--database-url", postgres.CheckURL(o.DatabaseURL))
	}
	if o.KeyPrefix != "" {
		wrong("--key-prefix", keys.CheckPrefix(o.KeyPrefix))
	}
	wrong("--hash-key", checkHashKey(o.HashKey))
	if len(all) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %w", ErrOptions, errors.Join(all...))
}

// wrongPath names the flag of a path that the system refused. What the path can be blamed for is a wrong setting; a full disk is not.
func wrongPath(flag string, err error) error {
	if _, ok := errors.AsType[*fs.PathError](err); !ok {
		return err
	}
	for _, blame := range []error{fs.ErrNotExist, fs.ErrPermission, syscall.ENOTDIR, syscall.EISDIR} {
		if errors.Is(err, blame) {
			return fmt.Errorf("%w: %s: %w", ErrOptions, flag, err)
		}
	}
	return fmt.Errorf("%s: %w", flag, err)
}

// RunsAlerts tells whether alerts, and jobs with them, run in this limiter, which else answers requests and no more, but for the jobs
// of its file where it has no database.
func (o *Options) RunsAlerts() bool {
	return o.Alerter == "on" || o.Alerter != "off" && (o.NATSURL == "" || o.DatabaseURL == "")
}
