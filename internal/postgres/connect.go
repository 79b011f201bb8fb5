package postgres

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed503877ad/limits/internal/quickconn"
)

// CheckURL returns an error if [Open] could not read the URL.
func CheckURL(text string) error {
	_, err := parse(text)
	return err
}

// parse reads the connection string. Its errors neither quote the string nor wrap a cause, because
// the string holds a password, which cannot be masked reliably in a malformed one.
func parse(text string) (*pgxpool.Config, error) {
	if text == "" {
		return nil, errors.New("read database URL: it is empty")
	}
	// If a password has a bare @ or /, pgx takes the rest of it for a host or a database, and
	// quotes both in its errors.
	if scheme, rest, _ := strings.Cut(text, "://"); scheme == "postgres" || scheme == "postgresql" {
		rest, _, _ = strings.Cut(rest, "?")
		if i := strings.IndexAny(rest, "@/"); i >= 0 && strings.Contains(rest[i+1:], "@") {
			return nil, errors.New("read database URL: it has an @ after the user and password; " + wantedURL)
		}
	}
	cfg, err := pgxpool.ParseConfig(text)
	if err != nil {
		return nil, urlError(text, err)
	}
	// The default of pgx is two minutes.
	if cfg.ConnConfig.ConnectTimeout == 0 || !strings.Contains(text, "connect_timeout") {
		cfg.ConnConfig.ConnectTimeout = connectTimeout
	}
	dial := cfg.ConnConfig.DialFunc
	cfg.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return quickconn.Wrap(conn), nil
	}
	return cfg, nil
}

const wantedURL = "want postgres://user:password@host:port/database?sslmode=…, with / and @ in the password written as %2F and %40"

// urlError says what pgx could not read in the URL, as far as that cannot quote the password.
func urlError(text string, err error) error {
	u, urlErr := url.Parse(text)
	if urlErr != nil || u.Host == "" {
		return errors.New("read database URL: it is malformed; " + wantedURL)
	}
	// The reason that pgx gives is helpful, such as which setting is bad. It is the last part of
	// the message; the part before it quotes the string.
	_, reason, _ := strings.Cut(err.Error(), "`: ")
	if password, set := u.User.Password(); reason == "" || set && strings.Contains(reason, password) {
		return errors.New("read database URL: " + wantedURL)
	}
	return errors.New("read database URL: " + reason + "; " + wantedURL)
}

// configureSession sets up every connection, except for settings that the URL has.
//
// It uses statements rather than startup parameters, because a pooler refuses or drops startup
// parameters that it does not know (PgBouncer's ignore_startup_parameters), and because a session
// that comes from a pooler is not new.
//
// The right plan of each statement here is known: nested loops over indexes. The planner would
// choose it from statistics, which a new table does not have and which lag behind a fast-growing
// one. So the alternatives are turned off, and the plan is made once per connection.
func configureSession(cfg *pgxpool.Config, name string, lock, statement, idle time.Duration) {
	params := cfg.ConnConfig.RuntimeParams
	if !hasSetting(params, "application_name") {
		params["application_name"] = name
	}
	settings := deallocateSQL + encodingSQL
	if !hasSetting(params, "synchronous_commit") {
		settings += syncCommitSQL
	}
	settings += setUnlessInURL(params, [][2]string{
		{"lock_timeout", millis(lock)},
		{"statement_timeout", millis(statement)},
		{"idle_in_transaction_session_timeout", millis(idle)},
		// For single statements, whose implicit transaction names neither.
		{"default_transaction_isolation", "'read committed'"},
		{"default_transaction_read_only", "off"},
		{"plan_cache_mode", "force_generic_plan"},
		{"enable_seqscan", "off"},
		{"enable_bitmapscan", "off"},
		{"enable_hashjoin", "off"},
		{"enable_mergejoin", "off"},
		{"enable_material", "off"},
		// The planner prices disabled nodes so high that it would compile the plan.
		{"jit", "off"},
	})
	// This runs for each host of the URL that accepts the login. During a switchover an address may
	// lead to a standby for a moment, and a connection made then would stay in the pool.
	cfg.ConnConfig.ValidateConnect = func(ctx context.Context, conn *pgconn.PgConn) error {
		if _, err := execSimple(ctx, conn, settings); err != nil {
			return fmt.Errorf("set up the session: %w", err)
		}
		err := pgconn.ValidateConnectTargetSessionAttrsReadWrite(ctx, conn)
		if err != nil && !conn.IsClosed() { // the server did answer
			err = fmt.Errorf("%w: %w", errReadOnly, err)
		}
		return err
	}
}

const (
	// Text is UTF-8 both ways, whatever client encoding the role or database has as its default.
	// With client_encoding equal to server_encoding the server converts nothing. A UTF8 server
	// still checks that the bytes are UTF-8, and a server with a single-byte encoding (LATIN1,
	// SQL_ASCII) stores characters that it could not convert.
	encodingSQL = `SELECT set_config('client_encoding', current_setting('server_encoding'), false); `

	// An answered decision must survive a crash of the server, so off is not accepted. The other
	// settings are the operator's choice: remote_apply asks for more, and local does not wait for a
	// standby.
	syncCommitSQL = `SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'; `
)

// optionSetting matches a setting in the options parameter, which is a server command line.
var optionSetting = regexp.MustCompile(`(?:^|\s)(?:-c\s*|--)([\w-]+)=`)

// hasSetting reports whether the URL has a setting, as a parameter of its own or in options=-c….
func hasSetting(params map[string]string, setting string) bool {
	for name := range params {
		if strings.EqualFold(name, setting) {
			return true
		}
	}
	for _, o := range optionSetting.FindAllStringSubmatch(params["options"], -1) {
		if strings.EqualFold(strings.ReplaceAll(o[1], "-", "_"), setting) {
			return true
		}
	}
	return false
}

// setUnlessInURL returns SET statements for those of the settings that the URL does not have.
func setUnlessInURL(params map[string]string, all [][2]string) string {
	var sql strings.Builder
	for _, s := range all {
		if !hasSetting(params, s[0]) {
			sql.WriteString("SET " + s[0] + " = " + s[1] + "; ")
		}
	}
	return sql.String()
}

func millis(d time.Duration) string { return strconv.FormatInt(max(1, d.Milliseconds()), 10) }

// prepare prepares the statements of [decisionSQL] on a new connection, in one round trip.
func prepare(ctx context.Context, conn *pgx.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	pc := conn.PgConn()
	all := new(statements)
	p := pc.StartPipeline(ctx)
	for i, sql := range decisionSQL {
		p.SendPrepare("limits_"+strconv.Itoa(i), sql, nil)
	}
	err := p.Sync()
	for i := 0; err == nil && i < len(decisionSQL); i++ {
		if all[i], err = next[*pgconn.StatementDescription](p); err == nil {
			all[i].Name, all[i].SQL = "limits_"+strconv.Itoa(i), decisionSQL[i]
		}
	}
	if closeErr := p.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return fmt.Errorf("prepare statements: %w", err)
	}
	pc.CustomData()[statementsKey] = all
	return nil
}
