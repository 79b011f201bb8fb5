package limits_test

import (
	"testing"

	"github.com/seed503877ad/limits/internal/app/apptest"
)

// natsURL is the NATS server of the limiter that the examples talk to.
var natsURL string

func TestMain(m *testing.M) {
	apptest.Main(func(url string) int { natsURL = url; return m.Run() })
}
