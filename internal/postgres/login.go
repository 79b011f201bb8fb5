package postgres

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// invalidCatalog is the SQLSTATE of a missing database, and invalidAuthorization the class of those
// of a refused login.
const (
	invalidCatalog       = "3D000"
	invalidAuthorization = "28"
)

// LoginRefused reports whether a server refused the role, its password, or the database, so that
// waiting for the server is of no use.
func LoginRefused(err error) bool {
	state := sqlState(err)
	return state == invalidCatalog || strings.HasPrefix(state, invalidAuthorization)
}

// oneLine is an error with another text.
type oneLine struct {
	err  error
	text string
}

func (t oneLine) Error() string { return t.text }
func (t oneLine) Unwrap() error { return t.err }

func connectFailed(err error) error { return fmt.Errorf("connect to database: %w", inOneLine(err)) }

// inOneLine returns the error of a connect with a text of one line. pgx tries each address, with
// TLS and without, and lists all errors. If a server answered with an error, that is the reason;
// that another attempt found no TLS is not.
func inOneLine(err error) error {
	connect, ok := errors.AsType[*pgconn.ConnectError](err)
	if !ok {
		return err
	}
	joined, ok := connect.Unwrap().(interface{ Unwrap() []error })
	if !ok {
		return err
	}
	attempts := joined.Unwrap()
	answered := slices.ContainsFunc(attempts, func(err error) bool { return sqlState(err) != "" })
	var texts []string
	for _, attempt := range attempts {
		if text := attempt.Error(); !slices.Contains(texts, text) && (!answered || sqlState(attempt) != "") {
			texts = append(texts, text)
		}
	}
	before, _, _ := strings.Cut(err.Error(), "\n") // each attempt has its own line, unless there is only one
	if before == err.Error() {
		return err
	}
	return oneLine{err, before + " " + strings.Join(texts, "; ")}
}
