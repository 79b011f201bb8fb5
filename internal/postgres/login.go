package postgres

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// invalidCatalog is the SQLSTATE of a database that is not there, and invalidAuthorization begins those of a login that is refused.
const (
	invalidCatalog       = "3D000"
	invalidAuthorization = "28"
)

// LoginRefused says that a server answered, and refused the role, its password, or the database: waiting for it to come up is of no
// use.
func LoginRefused(err error) bool {
	state := sqlState(err)
	return state == invalidCatalog || strings.HasPrefix(state, invalidAuthorization)
}

// retold is an error with another text.
type oneLine struct {
	err  error
	text string
}

func (t oneLine) Error() string { return t.text }
func (t oneLine) Unwrap() error { return t.err }

func connectFailed(err error) error { return fmt.Errorf("connect to database: %w", inOneLine(err)) }

// inOneLine gives the error of a connect with a text of one line. A connect makes an attempt for each address, with TLS and without,
// and tells of all of them: where a server answered with an error, that is the reason, and that another attempt found no TLS is none.
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
	before, _, _ := strings.Cut(err.Error(), "\n") // each attempt has a line of its own, unless it is the only one
	if before == err.Error() {
		return err
	}
	return oneLine{err, before + " " + strings.Join(texts, "; ")}
}
