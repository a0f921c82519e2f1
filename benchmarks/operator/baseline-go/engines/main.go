// Thousands of engines in one process, for the pods of a fake kubelet: each loopback address is an engine of its own, which
// keeps the policy that it is sent and answers with a page of metrics and a state as a real one does. Both are given from
// outside, so that the contract stands in one place, the tests' own fake engine.
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"
)

type engine struct {
	policy   json.RawMessage
	revision int64
	at       time.Time
}

// answers is what every engine says, but for its policy.
type answers struct {
	Metrics string                     `json:"metrics"`
	State   map[string]json.RawMessage `json:"state"`
	Rank    map[string]json.RawMessage `json:"rank"`
}

var (
	guard    sync.Mutex
	engines  = map[string]*engine{}
	said     answers
	requests int64
)

func main() {
	http.HandleFunc("GET /metrics", func(w http.ResponseWriter, r *http.Request) {
		guard.Lock()
		requests++
		guard.Unlock()
		w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
		io.WriteString(w, said.Metrics)
	})
	http.HandleFunc("GET /specserver/v1/state", state)
	http.HandleFunc("PUT /specserver/v1/policy", put)
	http.HandleFunc("POST /play/answers", func(w http.ResponseWriter, r *http.Request) {
		if err := json.NewDecoder(r.Body).Decode(&said); err != nil {
			http.Error(w, err.Error(), http.StatusUnprocessableEntity)
		}
	})
	http.HandleFunc("POST /play/start", start)
	http.HandleFunc("GET /play/seen", seen)
	fmt.Fprintln(os.Stderr, http.ListenAndServe("0.0.0.0:"+os.Args[1], nil))
	os.Exit(1)
}

func address(r *http.Request) string {
	local := r.Context().Value(http.LocalAddrContextKey).(net.Addr).String()
	host, _, _ := net.SplitHostPort(local)
	return host
}

func revisionOf(policy []byte) (int64, error) {
	var document struct {
		Revision int64 `json:"revision"`
	}
	err := json.Unmarshal(policy, &document)
	return document.Revision, err
}

// start gives engines the policy that a real one reads from its mounted file.
func start(w http.ResponseWriter, r *http.Request) {
	var policies map[string]json.RawMessage
	if err := json.NewDecoder(r.Body).Decode(&policies); err != nil {
		http.Error(w, err.Error(), http.StatusUnprocessableEntity)
		return
	}
	guard.Lock()
	defer guard.Unlock()
	for address, policy := range policies {
		revision, err := revisionOf(policy)
		if err != nil {
			http.Error(w, err.Error(), http.StatusUnprocessableEntity)
			return
		}
		engines[address] = &engine{policy, revision, time.Now()}
	}
}

// seen tells since when each engine has its revision; of those whose address begins with ?prefix=.
func seen(w http.ResponseWriter, r *http.Request) {
	type one struct {
		Revision int64   `json:"revision"`
		At       float64 `json:"at"`
	}
	guard.Lock()
	defer guard.Unlock()
	known := map[string]one{}
	for address, engine := range engines {
		if !strings.HasPrefix(address, r.URL.Query().Get("prefix")) {
			continue
		}
		known[address] = one{engine.revision, float64(engine.at.UnixNano()) / 1e9}
	}
	json.NewEncoder(w).Encode(map[string]any{"requests": requests, "engines": known})
}

func state(w http.ResponseWriter, r *http.Request) {
	guard.Lock()
	requests++
	policy, revision := json.RawMessage("null"), json.RawMessage("null")
	if known := engines[address(r)]; known != nil {
		policy, revision = known.policy, json.RawMessage(fmt.Sprint(known.revision))
	}
	guard.Unlock()
	rank := map[string]json.RawMessage{}
	for key, value := range said.Rank {
		rank[key] = value
	}
	rank["policy"], rank["revision"] = policy, revision
	document := map[string]any{}
	for key, value := range said.State {
		document[key] = value
	}
	document["ranks"] = []any{rank}
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(document)
}

func put(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	revision, invalid := revisionOf(body)
	if err != nil || invalid != nil {
		http.Error(w, "not a policy", http.StatusUnprocessableEntity)
		return
	}
	guard.Lock()
	requests++
	engines[address(r)] = &engine{body, revision, time.Now()}
	guard.Unlock()
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, `{"revision": %d, "ranks": [{"rank": "tp0", "revision": %d}]}`, revision, revision)
}
