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

// sessionUser verifies a JSON Web Token (RFC 7519) signed with HMAC-SHA-256, and returns its subject, or "" if the token is not
// valid. Sessions are exempt from all rate limits, so the form of a token must not suffice. In production use the library of your
// authentication.
func sessionUser(r *http.Request, secret []byte) string {
	_, token, _ := strings.Cut(r.Header.Get("Authorization"), " ") // httplimit.Credential has checked the scheme
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

// signature is always HMAC-SHA-256. The algorithm in the token's header must not be trusted.
func signature(text string, secret []byte) []byte {
	mac := hmac.New(sha256.New, secret)
	mac.Write([]byte(text))
	return mac.Sum(nil)
}
