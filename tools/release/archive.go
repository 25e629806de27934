package release

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"fmt"
	"io/fs"
	"time"
)

// entry is a file of an archive.
type entry struct {
	name    string
	mode    fs.FileMode
	content []byte
}

// targz returns a compressed tar archive. It says nothing about the machine or the user.
func targz(entries []entry, at time.Time) ([]byte, error) {
	var b bytes.Buffer

	compressed := gzip.NewWriter(&b)
	archive := tar.NewWriter(compressed)

	for _, e := range entries {
		header := &tar.Header{Typeflag: tar.TypeReg, Name: e.name, Mode: int64(e.mode), Size: int64(len(e.content)), ModTime: at}
		if err := archive.WriteHeader(header); err != nil {
			return nil, fmt.Errorf("begin %s: %w", e.name, err)
		}

		if _, err := archive.Write(e.content); err != nil {
			return nil, fmt.Errorf("add %s: %w", e.name, err)
		}
	}

	if err := archive.Close(); err != nil {
		return nil, fmt.Errorf("end the archive: %w", err)
	}

	if err := compressed.Close(); err != nil {
		return nil, fmt.Errorf("compress the archive: %w", err)
	}

	return b.Bytes(), nil
}

// zipped returns a zip archive. It says nothing about the machine or the user.
func zipped(entries []entry, at time.Time) ([]byte, error) {
	var b bytes.Buffer

	archive := zip.NewWriter(&b)

	for _, e := range entries {
		header := &zip.FileHeader{Name: e.name, Method: zip.Deflate, Modified: at.UTC()}
		header.SetMode(e.mode)

		w, err := archive.CreateHeader(header)
		if err != nil {
			return nil, fmt.Errorf("begin %s: %w", e.name, err)
		}

		if _, err := w.Write(e.content); err != nil {
			return nil, fmt.Errorf("add %s: %w", e.name, err)
		}
	}

	if err := archive.Close(); err != nil {
		return nil, fmt.Errorf("end the archive: %w", err)
	}

	return b.Bytes(), nil
}
