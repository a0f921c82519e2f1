// A controller of the usual making, to measure against: controller-runtime with its informer cache, one reconcile a
// SpeculativeServer, objects from a template. It keeps what the template holds, a Deployment alone or all objects that
// the operator keeps, and writes no status.
package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"os"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

const appliedHash = "baseline.specserver.io/applied"

var server = schema.GroupVersionKind{Group: "specserver.io", Version: "v1alpha1", Kind: "SpeculativeServer"}

// template is one object with placeholders for what differs between servers.
type template struct {
	kind string
	text []byte
}

type reconciler struct {
	client.Client
	templates []template
}

// Reconcile brings each object of one server to what its template says.
func (r *reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	owner := &unstructured.Unstructured{}
	owner.SetGroupVersionKind(server)
	if err := r.Get(ctx, request.NamespacedName, owner); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	for _, one := range r.templates {
		desired, err := build(one, owner)
		if err != nil {
			return ctrl.Result{}, err
		}
		live := newObject(one.kind)
		err = r.Get(ctx, client.ObjectKeyFromObject(desired), live)
		switch {
		case apierrors.IsNotFound(err):
			// The cache may not show yet what was made a moment ago.
			err = client.IgnoreAlreadyExists(r.Create(ctx, desired))
		case err == nil && live.GetAnnotations()[appliedHash] != desired.GetAnnotations()[appliedHash]:
			desired.SetResourceVersion(live.GetResourceVersion())
			err = r.Update(ctx, desired)
		}
		if err != nil {
			return ctrl.Result{}, err
		}
	}
	return ctrl.Result{}, nil
}

func build(one template, owner *unstructured.Unstructured) (client.Object, error) {
	text := bytes.ReplaceAll(one.text, []byte("@NAME@"), []byte(owner.GetName()))
	text = bytes.ReplaceAll(text, []byte("@NAMESPACE@"), []byte(owner.GetNamespace()))
	text = bytes.ReplaceAll(text, []byte("@UID@"), []byte(owner.GetUID()))
	desired := newObject(one.kind)
	if err := json.Unmarshal(text, desired); err != nil {
		return nil, err
	}
	hash := sha256.New()
	hash.Write(text)
	if deployment, ok := desired.(*appsv1.Deployment); ok {
		replicas, found, err := unstructured.NestedInt64(owner.Object, "spec", "replicas")
		if err != nil || !found {
			return nil, fmt.Errorf("spec.replicas: %v", err)
		}
		deployment.Spec.Replicas = ptr.To(int32(replicas))
		fmt.Fprintf(hash, "%d", replicas)
	}
	annotations := desired.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[appliedHash] = hex.EncodeToString(hash.Sum(nil)[:8])
	desired.SetAnnotations(annotations)
	return desired, nil
}

func newObject(kind string) client.Object {
	switch kind {
	case "Deployment":
		return &appsv1.Deployment{}
	case "Service":
		return &corev1.Service{}
	case "ConfigMap":
		return &corev1.ConfigMap{}
	case "Secret":
		return &corev1.Secret{}
	case "PodDisruptionBudget":
		return &policyv1.PodDisruptionBudget{}
	}
	panic("no such kind: " + kind)
}

func main() {
	// --kubeconfig is controller-runtime's own flag.
	file := flag.String("templates", "", "JSON list of the objects to keep for each server")
	workers := flag.Int("workers", 8, "servers that are reconciled at the same time")
	flag.Parse()
	if err := run(*file, *workers); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(file string, workers int) error {
	ctrl.SetLogger(klog.Background())
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var bodies []json.RawMessage
	if err := json.Unmarshal(text, &bodies); err != nil {
		return err
	}
	config, err := ctrl.GetConfig()
	if err != nil {
		return err
	}
	config.QPS = -1 // no client-side limit: the operator has none either
	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		return err
	}
	manager, err := ctrl.NewManager(config, ctrl.Options{
		Scheme:                 scheme,
		Metrics:                metricsserver.Options{BindAddress: "0"},
		HealthProbeBindAddress: "0",
		Cache: cache.Options{
			DefaultLabelSelector: labels.SelectorFromSet(labels.Set{"app.kubernetes.io/managed-by": "specserver"}),
			ByObject:             map[client.Object]cache.ByObject{watched(): {Label: labels.Everything()}},
		},
		Client: client.Options{Cache: &client.CacheOptions{Unstructured: true}},
	})
	if err != nil {
		return err
	}
	builder := ctrl.NewControllerManagedBy(manager).
		For(watched()).
		WithOptions(controller.Options{MaxConcurrentReconciles: workers})
	kept := &reconciler{Client: manager.GetClient()}
	for _, body := range bodies {
		var head struct {
			Kind string `json:"kind"`
		}
		if err := json.Unmarshal(body, &head); err != nil {
			return err
		}
		kept.templates = append(kept.templates, template{head.Kind, body})
		builder = builder.Owns(newObject(head.Kind))
	}
	if err := builder.Complete(kept); err != nil {
		return err
	}
	return manager.Start(ctrl.SetupSignalHandler())
}

func watched() *unstructured.Unstructured {
	one := &unstructured.Unstructured{}
	one.SetGroupVersionKind(server)
	return one
}
