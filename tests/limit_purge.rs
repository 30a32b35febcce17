//! Rows that limits leave in real databases are deleted: continuously by the program, by several servers at once, and
//! without delaying anybody.

#[path = "support/databases.rs"]
mod databases;
mod support;

use databases::Server;
use headcount::limit::{Ask, Mysql, Postgres, Rate, token_bucket};
use mysql_async::prelude::Queryable;
use std::time::Duration;
use tokio::task::JoinSet;

const HOUR: Duration = Duration::from_secs(3600);

/// So long ago that no attempt counts any more.
const LONG_AGO: Duration = Duration::from_secs(1_000_000);

/// The number of concurrent requests.
const CLIENTS: u64 = 8;

async fn psql(server: &Server) -> tokio_postgres::Client {
    let (client, connection) =
        tokio_postgres::connect(&server.url("postgres", "postgres"), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

async fn number(client: &tokio_postgres::Client, query: &str) -> i64 {
    client.query_one(query, &[]).await.unwrap().get(0)
}

const BUCKETS: &str = "select count(*) from headcount.buckets";

async fn postgres(server: &Server) -> Postgres {
    let store = Postgres::builder(server.url("postgres", "postgres")).within(Duration::from_secs(20)).open().unwrap();
    store.install().await.unwrap();
    store
}

/// Asks once for each of this many keys that were never sent before, at a given time.
async fn flood_postgres(store: &Postgres, keys: std::ops::Range<u64>, at: Duration) {
    let mut clients = JoinSet::new();
    for client in 0..CLIENTS {
        let bucket = store.bucket(token_bucket(Rate::per_hour(1), 1)).unwrap().named("flood").unwrap();
        let keys = keys.clone();
        clients.spawn(async move {
            for key in keys.filter(|key| key % CLIENTS == client) {
                assert!(bucket.at(at).ask(key.to_le_bytes(), Ask::ONE).await.unwrap().is_allowed());
            }
        });
    }
    clients.join_all().await;
}

async fn mysql_client(server: &Server, database: &str) -> mysql_async::Conn {
    mysql_async::Conn::from_url(server.url("root", database)).await.unwrap()
}

async fn mysql(server: &Server) -> Mysql {
    let create = "CREATE DATABASE IF NOT EXISTS limits";
    mysql_client(server, "mysql").await.query_drop(create).await.unwrap();
    let store = Mysql::builder(server.url("root", "limits")).within(Duration::from_secs(20)).open().unwrap();
    store.install().await.unwrap();
    store.set_zone(7, 2, HOUR).await.unwrap();
    store
}

async fn flood_mysql(store: &Mysql, keys: std::ops::Range<u64>, at: Duration) {
    let mut clients = JoinSet::new();
    for client in 0..CLIENTS {
        let (zone, keys) = (store.velocity(7), keys.clone());
        clients.spawn(async move {
            for key in keys.filter(|key| key % CLIENTS == client) {
                assert!(zone.at(at).ask(key.to_le_bytes(), Ask::ONE).await.unwrap().is_allowed());
            }
        });
    }
    clients.join_all().await;
}

/// The numbers of attempts and of bucket locks.
async fn rows(client: &mut mysql_async::Conn) -> [u64; 2] {
    let mut counts = [0; 2];
    for (count, table) in counts.iter_mut().zip(["transactions", "bucket_locks"]) {
        *count = client.query_first(format!("SELECT COUNT(*) FROM headcount_{table}")).await.unwrap().unwrap();
    }
    counts
}

#[tokio::test]
async fn a_flood_of_keys_leaves_postgresql_no_larger_than_one_wave_of_it() {
    let server = Server::postgres();
    let (store, client) = (postgres(&server).await, psql(&server).await);
    let mut sizes = Vec::new();
    for wave in 0..5 {
        flood_postgres(&store, wave * 3000..(wave + 1) * 3000, LONG_AGO).await;
        assert_eq!(number(&client, BUCKETS).await, 3000);
        assert_eq!(store.purge(u32::MAX).await.unwrap(), 3000);
        // What autovacuum does once a minute.
        client.batch_execute("vacuum headcount.buckets").await.unwrap();
        sizes.push(number(&client, "select pg_total_relation_size('headcount.buckets')").await);
    }
    println!("PostgreSQL, bytes after each wave of 3000 keys: {sizes:?}");
    // The index has reached its size after the second.
    assert!(sizes[4] * 10 <= sizes[1] * 12, "{sizes:?}");
}

#[tokio::test]
async fn a_flood_of_keys_leaves_mariadb_no_larger_than_one_wave_of_it() {
    let server = Server::mariadb();
    let store = mysql(&server).await;
    let mut client = mysql_client(&server, "limits").await;
    let mut sizes = Vec::new();
    for wave in 0..5 {
        flood_mysql(&store, wave * 2000..(wave + 1) * 2000, LONG_AGO).await;
        assert_eq!(rows(&mut client).await, [2000, 2000]);
        assert_eq!(store.purge(Duration::ZERO, u32::MAX).await.unwrap(), 2000);
        assert_eq!(rows(&mut client).await, [0, 0]);
        // What InnoDB does a moment later: it frees the pages of deleted rows.
        client.query_drop("SET GLOBAL innodb_max_purge_lag_wait = 0").await.unwrap();
        let size = "SELECT SUM(FILE_SIZE) FROM information_schema.INNODB_SYS_TABLESPACES WHERE NAME LIKE 'limits/%'";
        sizes.push(client.query_first::<f64, _>(size).await.unwrap().unwrap());
    }
    println!("MariaDB, bytes after each wave of 2000 attempts: {sizes:?}");
    assert!(sizes[4] <= sizes[0] * 1.5, "{sizes:?}");
}

#[tokio::test]
async fn several_servers_purge_while_others_ask_and_none_fails() {
    let (first, second) = (Server::postgres(), Server::mariadb());
    let (postgres, mysql) = (postgres(&first).await, mysql(&second).await);
    flood_postgres(&postgres, 0..4000, LONG_AGO).await;
    flood_mysql(&mysql, 0..2000, LONG_AGO).await;
    let mut purges = JoinSet::new();
    for _ in 0..4 {
        let (postgres, mysql) = (postgres.clone(), mysql.clone());
        purges.spawn(async move {
            let mut purged = [0, 0];
            for _ in 0..20 {
                purged[0] += postgres.purge(500).await.unwrap();
                purged[1] += mysql.purge(Duration::ZERO, 100).await.unwrap();
            }
            purged
        });
    }
    // Some of the same keys, now: a request that meets a purge gets its answer, and what it was granted stays granted.
    let now = Duration::from_secs(4_000_000_000);
    flood_postgres(&postgres, 0..500, now).await;
    flood_mysql(&mysql, 0..500, now).await;
    let purged = purges.join_all().await;
    postgres.purge(u32::MAX).await.unwrap();
    mysql.purge(Duration::ZERO, u32::MAX).await.unwrap();
    println!("purged by each of four: {purged:?}");
    assert_eq!(number(&psql(&first).await, BUCKETS).await, 500);
    assert_eq!(rows(&mut mysql_client(&second, "limits").await).await, [500, 500]);
}

#[tokio::test]
async fn a_purge_waits_for_no_locked_row() {
    let server = Server::postgres();
    let store = Postgres::builder(server.url("postgres", "postgres")).within(Duration::from_secs(2)).open().unwrap();
    store.install().await.unwrap();
    flood_postgres(&store, 0..10, LONG_AGO).await;
    let client = psql(&server).await;
    client.batch_execute("begin; select * from headcount.buckets limit 1 for update").await.unwrap();
    assert_eq!(store.purge(100).await.unwrap(), 9);
    client.batch_execute("commit").await.unwrap();
    assert_eq!(store.purge(100).await.unwrap(), 1);
    // While another server purges, this one leaves the work to it.
    flood_postgres(&store, 0..10, LONG_AGO).await;
    client.batch_execute("begin; select * from headcount.purge_place for update").await.unwrap();
    assert_eq!(store.purge(100).await.unwrap(), 0);
    client.batch_execute("commit").await.unwrap();
    assert_eq!(store.purge(100).await.unwrap(), 10);

    let server = Server::mariadb();
    let store = mysql(&server).await;
    flood_mysql(&store, 0..10, LONG_AGO).await;
    let mut client = mysql_client(&server, "limits").await;
    client.query_drop("START TRANSACTION").await.unwrap();
    let _: Vec<u64> =
        client.query("SELECT id FROM headcount_transactions ORDER BY id LIMIT 1 FOR UPDATE").await.unwrap();
    let lock = "SELECT bucket_key FROM headcount_bucket_locks WHERE zone_id = 7 AND bucket_key = ? FOR UPDATE";
    let locked: Vec<Vec<u8>> = client.exec(lock, (5_u64.to_le_bytes(),)).await.unwrap();
    assert_eq!(locked.len(), 1);
    assert_eq!(store.purge(Duration::ZERO, 100).await.unwrap(), 9);
    client.query_drop("COMMIT").await.unwrap();
    assert_eq!(store.purge(Duration::ZERO, 100).await.unwrap(), 1);
    assert_eq!(rows(&mut client).await, [0, 0]);
}

#[tokio::test]
async fn locks_of_clients_that_disconnected_are_deleted() {
    let server = Server::mariadb();
    let store = mysql(&server).await;
    let mut client = mysql_client(&server, "limits").await;
    client
        .query_drop("INSERT INTO headcount_bucket_locks SELECT 7, CONCAT('gone', seq) FROM seq_1_to_1200")
        .await
        .unwrap();
    assert!(store.velocity(7).ask("here", Ask::ONE).await.unwrap().is_allowed());
    for _ in 0..3 {
        assert_eq!(store.purge(Duration::ZERO, 100).await.unwrap(), 0);
    }
    assert_eq!(rows(&mut client).await, [1, 1]);
}

/// The figures of a server's purges, by store.
fn purged(server: &support::Server, what: &str, store: &str) -> u64 {
    let metrics = support::get(server.admin, "/metrics", &[]).body;
    let line = format!("headcount_limiter_{what}_total{{store=\"{store}\"}} ");
    metrics.lines().find_map(|shown| shown.strip_prefix(&line)).and_then(|count| count.parse().ok()).unwrap()
}

#[tokio::test]
async fn the_program_purges_counts_its_purges_and_survives_databases_that_are_away() {
    let (mut first, mut second) = (Server::postgres(), Server::mariadb());
    let create = "CREATE DATABASE limits";
    mysql_client(&second, "mysql").await.query_drop(create).await.unwrap();
    let text = format!(
        "[[limit]]\nname = 'flood'\nkey = 'token'\nrate = '1/1h'\nstore = 'postgres'\n\
         [[limit]]\nname = 'zone'\nkey = 'token'\nrate = '2/1h'\nstore = 'mysql'\nalgorithm = 'velocity'\nzone = 7\n\
         [token]\nsecret = 'sixteen bytes at least'\n[postgres]\nurl = '{}'\n[mysql]\nurl = '{}'\n",
        first.url("postgres", "postgres"),
        second.url("root", "limits")
    );
    let states = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let servers = [0, 1].map(|nth| {
        let file = states[nth].path().join("headcount.toml");
        std::fs::write(&file, &text).unwrap();
        let arguments = ["-c", file.to_str().unwrap(), "--max-active-users", "10"];
        support::Server::start(states[nth].path(), &arguments, &[])
    });
    let sum = |what: &str, store: &str| servers.iter().map(|server| purged(server, what, store)).sum::<u64>();
    for wave in 0..2 {
        // Both servers run, so that the flood finds its schema.
        flood_postgres(&postgres(&first).await, 0..2500, LONG_AGO).await;
        flood_mysql(&mysql(&second).await, 0..1200, LONG_AGO).await;
        support::wait_for("the floods to be purged", || {
            let purged = [sum("purged_rows", "postgres"), sum("purged_rows", "mysql")];
            (purged == [(wave + 1) * 2500, (wave + 1) * 1200]).then_some(())
        });
        assert_eq!(number(&psql(&first).await, BUCKETS).await, 0);
        assert_eq!(rows(&mut mysql_client(&second, "limits").await).await, [0, 0]);
        if wave == 0 {
            assert_eq!([sum("purge_failures", "postgres"), sum("purge_failures", "mysql")], [0, 0]);
            first.kill();
            second.kill();
            support::wait_for("the purges to fail", || {
                (sum("purge_failures", "postgres") > 0 && sum("purge_failures", "mysql") > 0).then_some(())
            });
            first.restart();
            second.restart();
        }
    }
    for store in ["postgres", "mysql"] {
        let again = format!("the database of [{store}] is purged again");
        support::wait_for(&again, || servers.iter().any(|server| server.logged().contains(&again)).then_some(()));
    }
}
