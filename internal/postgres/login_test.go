package postgres

import (
	"net/url"
	"strings"
	"testing"

	"github.com/seed503877ad/limits/internal/testenv"
)

// TestWhyAConnectFailedIsToldOnce: without TLS on the server each attempt with it fails first, and that is not the reason.
func TestWhyAConnectFailedIsToldOnce(t *testing.T) {
	t.Parallel()
	u, err := url.Parse(testenv.Postgres(t, Migrate))
	if err != nil {
		t.Fatal(err)
	}
	query := u.Query()
	query.Set("sslmode", "prefer")
	u.RawQuery, u.Path = query.Encode(), "/no_such_database"
	failed := open(t, Config{URL: u.String()}).CheckSessions(t.Context())
	if failed == nil || !strings.Contains(failed.Error(), "\n") {
		t.Fatalf("%v; want an error of two attempts", failed)
	}
	err = Told(failed)
	if text := err.Error(); strings.ContainsAny(text, "\n\t") || strings.Contains(text, "TLS") || strings.Count(text, "SQLSTATE 3D000") != 1 ||
		!strings.HasPrefix(text, "connect to database: failed to connect to") {
		t.Errorf("it is told as %q", text)
	}
	if !LoginRefused(err) || LoginRefused(errReadOnly) || Told(errReadOnly) != errReadOnly {
		t.Error("a login that is refused is not known, or another error is taken for one")
	}
	if _, err = MigrationStatus(t.Context(), u.String()); err == nil || err.Error() != "read migration status: "+Told(failed).Error() {
		t.Errorf("limiter migrate tells it as %v", err)
	}
}
