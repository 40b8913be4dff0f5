#!/bin/sh
# Runs once, when the data folder is new: the owner migrates, the app role serves and owns nothing.
set -eu
psql --set ON_ERROR_STOP=1 --username "$POSTGRES_USER" --dbname postgres \
    --set owner_password="$GPUYARD_OWNER_PASSWORD" --set app_password="$GPUYARD_APP_PASSWORD" <<'SQL'
CREATE ROLE gpuyard_owner LOGIN NOSUPERUSER NOCREATEROLE PASSWORD :'owner_password';
CREATE ROLE gpuyard_app LOGIN NOSUPERUSER NOCREATEROLE NOCREATEDB PASSWORD :'app_password';
CREATE DATABASE gpuyard OWNER gpuyard_owner;
REVOKE ALL ON DATABASE gpuyard FROM PUBLIC;
GRANT CONNECT, TEMPORARY ON DATABASE gpuyard TO gpuyard_app;
SQL
