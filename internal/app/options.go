// Package app wires the parts of a limiter or an alerter together. It takes Options (the commands read the
// flags), starts the parts in order and stops them in reverse order.
//
// Besides the files of the SQLite store and of the embedded NATS server, the data folder holds the files of
// this package: limits.lock and .limits.lock, and with SQLite and a policy file hash.fingerprint and, if no hash key is set, the
// generated hash.key. If limits.db is a symbolic link, lock files are beside its target, too.
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

// Options are the settings of a limiter or an alerter. Each field names its environment variable.
type Options struct {
	// NATSURL (NATS_URL) is the NATS cluster; empty embeds a server.
	NATSURL string
	// NATSListen (NATS_LISTEN) is where the embedded server listens; port 0 picks a free one.
	NATSListen string
	// NATSCreds (NATS_CREDS) is a credentials file for NATSURL, or a file with only an nkey seed.
	NATSCreds string
	// NATSTLSCA, NATSTLSCert, NATSTLSKey (NATS_TLS_CA, …) are PEM files for NATSURL.
	NATSTLSCA, NATSTLSCert, NATSTLSKey string
	// NATSInboxPrefix (NATS_INBOX_PREFIX) begins the reply subjects of requests; empty is "_INBOX".
	NATSInboxPrefix string
	// DatabaseURL (DATABASE_URL) is a PostgreSQL server; empty keeps a SQLite file in DataDir.
	DatabaseURL string
	// DataDir (DATA_DIR) holds the SQLite file and the embedded server's streams.
	DataDir string
	// HTTPAddr (HTTP_ADDR) is where health, metrics and schemas are served; "off" serves none.
	HTTPAddr string
	// Source (SOURCE) is the CloudEvents source: a URI that names this service.
	Source string
	// WarningThreshold (WARNING_THRESHOLD) is the fraction of a limit, 0 to 1. A warning is raised when no
	// more than it remains.
	WarningThreshold float64
	// OnError (ON_ERROR) is how requests are answered while the store fails: allow (the default), deny or local.
	OnError string
	// KeyPrefix (KEY_PREFIX) begins new API keys; default "lim".
	KeyPrefix string
	// Policies (POLICIES) is the policy file; empty for none.
	Policies string
	// HashKey (HASH_KEY) is the key of the filter hash in policies, 16 bytes or more. If it is empty, SQLite
	// generates one and keeps it in DataDir; with PostgreSQL policies that hash are refused, because all
	// workers must share the key.
	HashKey string
	// CleanupEvery (CLEANUP_EVERY) is how often expired counters and receipts are removed; 0 for only on request.
	CleanupEvery time.Duration
	// UsageKeys (USAGE_KEYS) is how many keys are counted by themselves in an hour, at most; 0 for none.
	UsageKeys int
	// UsageMinuteDays (USAGE_MINUTE_DAYS) is the age in days at which usage per minute is rolled up to hours.
	// UsageDays (USAGE_DAYS), RequestDays (REQUEST_DAYS) and JobDays (JOB_DAYS) are the ages at which usage,
	// the request log and the history of jobs are removed. 0 is never.
	UsageMinuteDays, UsageDays, RequestDays, JobDays int
	// Alerter (ALERTER) says whether alerts and jobs run in a limiter: "on", "off", or "auto": on unless
	// NATSURL and DatabaseURL are both set. Without DatabaseURL jobs run in any case.
	Alerter string
	// Alerts (ALERTS) is the alerts file; empty for the built-in rule.
	Alerts string
	// AlertsAllow (ALERTS_ALLOW) are the private addresses to which alerts may be sent.
	AlertsAllow []netip.Prefix
	// AlertDays (ALERT_DAYS) is the age in days at which alerts and their deliveries are removed; 0 for never.
	AlertDays int
	// Busy, if set, is called while alerts cause unusually much work besides requests. It must not block.
	Busy func()
	// Version is the program's version.
	Version string

	// onError is OnError as parsed by check.
	onError engine.OnError
}

// ErrOptions is the error for invalid options. Nothing was started.
var ErrOptions = errors.New("invalid settings")

// maxUsageKeys bounds what a limiter remembers to count keys by themselves: some 20 bytes for each.
const maxUsageKeys = 10_000_000

// check parses OnError and reports every mistake that can be found without connecting to a server and without
// reading a file.
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
	if o.UsageKeys < 0 || o.UsageKeys > maxUsageKeys {
		wrong("--usage-keys", fmt.Errorf("%d is not between 0 and %d; want a number such as 100000", o.UsageKeys, maxUsageKeys))
	}
	wrong("--hash-key", checkHashKey(o.HashKey))
	if len(all) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %w", ErrOptions, errors.Join(all...))
}

// pathError adds the flag to an error about a path that the flag set. It is ErrOptions if another path would
// help; a full disk, for example, is not.
func pathError(flag string, err error) error {
	if _, ok := errors.AsType[*fs.PathError](err); !ok {
		return err
	}
	for _, wrongPath := range []error{fs.ErrNotExist, fs.ErrPermission, syscall.ENOTDIR, syscall.EISDIR} {
		if errors.Is(err, wrongPath) {
			return fmt.Errorf("%w: %s: %w", ErrOptions, flag, err)
		}
	}
	return fmt.Errorf("%s: %w", flag, err)
}

// runsAlerts reports whether this limiter runs alerts, and jobs with them. Otherwise it only answers requests;
// with SQLite it still runs the jobs of its file.
func (o *Options) runsAlerts() bool {
	return o.Alerter == "on" || o.Alerter != "off" && (o.NATSURL == "" || o.DatabaseURL == "")
}
