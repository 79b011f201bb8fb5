// Package natscreds reads the file with which a connection to NATS authenticates: a credentials file, or one with only an
// nkey seed.
//
// nats.go has an option for each of the two. Its option for credentials files sends the whole file in clear if no JWT can be
// found in it, so a seed would be told to the server and to whoever listens. So the JWT is looked for here, and nothing that
// is not one is ever sent.
package natscreds

import (
	"fmt"
	"os"
	"regexp"

	"github.com/nats-io/nats.go"
)

// jwt matches a line with a token: three parts in base64, of which the first is JSON.
var jwt = regexp.MustCompile(`(?m)^[ \t]*(eyJ[\w-]+\.[\w-]+\.[\w-]+)[ \t]*\r?$`)

// Option returns the option of nats.go for a file. The file is read when the option is applied, which fails if it has no seed
// of a user, and again each time that the connection is made, because files are replaced. A file whose seed is another one,
// without a JWT, needs the option to be applied again.
func Option(file string) nats.Option {
	return func(o *nats.Options) error {
		token, err := readJWT(file)
		if err != nil {
			return err
		}
		signs, err := nats.NkeyOptionFromSeed(file)
		if err != nil {
			return fmt.Errorf("NATS credentials %s: %w; want a credentials file (JWT and nkey seed), or a file with only the nkey seed of a user (SU…)", file, err)
		}
		o.UserJWT = nil
		if err := signs(o); err != nil || token == "" {
			return err
		}
		o.Nkey = ""
		o.UserJWT = func() (string, error) {
			token, err := readJWT(file)
			if err == nil && token == "" {
				err = fmt.Errorf("NATS credentials %s: there is no JWT any more", file)
			}
			return token, err
		}
		return nil
	}
}

// readJWT returns the JWT of a file, which is empty if there is none.
func readJWT(file string) (string, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("NATS credentials: %w", err)
	}
	if found := jwt.FindSubmatch(text); found != nil {
		return string(found[1]), nil
	}
	return "", nil
}
