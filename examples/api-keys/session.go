package main

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"strings"
	"time"
)

// sessionUser verifies a JSON Web Token (RFC 7519), signed with HMAC-SHA-256, and gives its subject; empty for none that is
// valid. A session is exempt from every limit of requests, so the form of a token alone must not do. Your authentication has a
// library for this.
func sessionUser(r *http.Request, secret []byte) string {
	_, token, _ := strings.Cut(r.Header.Get("Authorization"), " ") // httplimit.Credential has looked at the scheme
	parts := strings.Split(strings.TrimSpace(token), ".")
	if len(secret) == 0 || len(parts) != 3 {
		return ""
	}
	given, err := base64.RawURLEncoding.DecodeString(parts[2])
	if err != nil || !hmac.Equal(given, signature(parts[0]+"."+parts[1], secret)) {
		return ""
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return ""
	}
	var claims struct {
		Subject string `json:"sub"`
		Expires int64  `json:"exp"`
	}
	if json.Unmarshal(payload, &claims) != nil || time.Now().Unix() >= claims.Expires {
		return ""
	}
	return claims.Subject
}

// signature is always HMAC-SHA-256: what the token's header says of its algorithm is the client's word.
func signature(text string, secret []byte) []byte {
	mac := hmac.New(sha256.New, secret)
	mac.Write([]byte(text))
	return mac.Sum(nil)
}
