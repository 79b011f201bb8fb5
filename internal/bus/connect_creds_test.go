package bus

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/seed503877ad/limits/internal/testenv"
)

// seeds are those of two users, and publicKeys what their server knows of them. They are used nowhere else.
var (
	seeds      = []string{"SUAMJIKI3RFVAUIPENKG5TMXGYS6UICBUMDUDUHOFXTST54CYWJKNWI2AI", "SUAAIWGYX5MLPYRCXTGBJ5N3XXK23AA6QHSI2ET4DLA4DYSB7T2BWRENLA"}
	publicKeys = []string{"UAPPBNWRZZAVXV4VCRSHA3GKBQTKMD5EYIANKUL3B6BSJJWQ23QJ7B5M", "UATZWFLKVN65HLSEODKTTXKWWTUUAQTL42TGGMNRAANZYBBL2INLZ7LF"}
)

// TestConnectWithNkeySeed: the file is replaced while the connection is up, and the next connection is the new user's.
func TestConnectWithNkeySeed(t *testing.T) {
	t.Parallel()
	s := testenv.NATSConfig(t, fmt.Sprintf("authorization { users: [{nkey: %s}, {nkey: %s}] }", publicKeys[0], publicKeys[1]))
	file := filepath.Join(t.TempDir(), "seed")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(seeds[0])
	nc, err := Connect(t.Context(), ConnectConfig{URL: s.ClientURL(), Creds: file, Name: "x", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	user := func() string {
		all, err := s.Connz(&server.ConnzOptions{Username: true})
		if err != nil {
			t.Fatal(err)
		}
		var users []string
		for _, c := range all.Conns {
			users = append(users, c.AuthorizedUser)
		}
		return strings.Join(users, " ")
	}
	if got := user(); got != publicKeys[0] {
		t.Errorf("connected as %q, want %s", got, publicKeys[0])
	}
	write("-----BEGIN USER NKEY SEED-----\n" + seeds[1] + "\n------END USER NKEY SEED------\n")
	if err := nc.ForceReconnect(); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the new nkey is used", func() bool { return user() == publicKeys[1] })
}

// TestFileThatHasNoSeedIsRefused at the start, instead of being sent.
func TestFileThatHasNoSeedIsRefused(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "creds")
	if err := os.WriteFile(file, []byte("s3cret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Connect(t.Context(), ConnectConfig{URL: testenv.NATS(t).ClientURL(), Creds: file, Name: "x", Logger: slog.New(slog.DiscardHandler)})
	if err == nil || !strings.Contains(err.Error(), file) || !strings.Contains(err.Error(), "nkey seed") || strings.Contains(err.Error(), "s3cret") {
		t.Errorf("%v", err)
	}
}
