package sqlite

import (
	"testing"

	"github.com/seed503877ad/limits/internal/storetest"
	"github.com/seed503877ad/limits/internal/usage"
)

func TestUsage(t *testing.T) {
	storetest.Usage(t, func(t *testing.T) usage.Store { return open(t, Config{}) })
}

func TestSettle(t *testing.T) {
	storetest.Settle(t, func(t *testing.T) storetest.Store { return open(t, Config{}) })
}
