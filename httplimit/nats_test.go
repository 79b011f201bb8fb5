package httplimit_test

import (
	"testing"

	"github.com/seed503877ad/limits/internal/testenv"
)

// startNATS starts a NATS server on which no limiter listens.
func startNATS(t testing.TB) (url string) { return testenv.NATS(t).ClientURL() }
