"""The extension for exclusions, the clock's table and `yard_now()`, which all later tables use, then the user."""

import django.contrib.auth.models
import django.contrib.auth.validators
import django.db.models.deletion
import django.utils.timezone
import functools
import gpuyard.core.clock
import gpuyard.core.ids
from django.conf import settings
from django.contrib.postgres.operations import BtreeGistExtension
from django.db import migrations, models

YARD_NOW = """
CREATE FUNCTION yard_now() RETURNS timestamptz LANGUAGE sql VOLATILE PARALLEL SAFE AS
$$ SELECT clock_timestamp() + (SELECT offset_us FROM core_clockoffset WHERE id = 1) * interval '1 microsecond' $$;

INSERT INTO core_clockoffset (id, offset_us) VALUES (1, 0);

CREATE FUNCTION core_clockoffset_guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'DELETE' OR NEW.offset_us < OLD.offset_us THEN
    RAISE EXCEPTION 'the clock offset only grows' USING ERRCODE = 'check_violation';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER core_clockoffset_guard BEFORE UPDATE OR DELETE ON core_clockoffset
  FOR EACH ROW EXECUTE FUNCTION core_clockoffset_guard();
"""


class Migration(migrations.Migration):
    initial = True
    dependencies = [
        ('auth', '0012_alter_user_first_name_max_length'),
    ]
    operations = [
        BtreeGistExtension(),
        migrations.CreateModel(
            name="ClockOffset",
            fields=[
                ("id", models.SmallIntegerField(default=1, primary_key=True, serialize=False)),
                ("offset_us", models.BigIntegerField(default=0)),
            ],
            options={
                "constraints": [models.CheckConstraint(condition=models.Q(("id", 1)), name="core_clockoffset_one_row")]
            },
        ),
        migrations.RunSQL(YARD_NOW, "DROP FUNCTION core_clockoffset_guard() CASCADE; DROP FUNCTION yard_now()"),
        migrations.CreateModel(
            name='User',
            fields=[
                ('password', models.CharField(max_length=128, verbose_name='password')),
                ('last_login', models.DateTimeField(blank=True, null=True, verbose_name='last login')),
                ('is_superuser', models.BooleanField(default=False, help_text='Designates that this user has all permissions without explicitly assigning them.', verbose_name='superuser status')),
                ('username', models.CharField(error_messages={'unique': 'A user with that username already exists.'}, help_text='Required. 150 characters or fewer. Letters, digits and @/./+/-/_ only.', max_length=150, unique=True, validators=[django.contrib.auth.validators.UnicodeUsernameValidator()], verbose_name='username')),
                ('first_name', models.CharField(blank=True, max_length=150, verbose_name='first name')),
                ('last_name', models.CharField(blank=True, max_length=150, verbose_name='last name')),
                ('email', models.EmailField(blank=True, max_length=254, verbose_name='email address')),
                ('is_staff', models.BooleanField(default=False, help_text='Designates whether the user can log into this admin site.', verbose_name='staff status')),
                ('is_active', models.BooleanField(default=True, help_text='Designates whether this user should be treated as active. Unselect this instead of deleting accounts.', verbose_name='active')),
                ('date_joined', models.DateTimeField(default=django.utils.timezone.now, verbose_name='date joined')),
                ('id', models.UUIDField(default=gpuyard.core.ids.uuid7, editable=False, primary_key=True, serialize=False)),
                ('public_id', models.CharField(default=functools.partial(gpuyard.core.ids.new_public_id, *('u',), **{}), editable=False, max_length=16, unique=True)),
                ('time_zone', models.CharField(blank=True, default='', max_length=64)),
                ('is_platform_admin', models.BooleanField(default=False)),
                ('groups', models.ManyToManyField(blank=True, help_text='The groups this user belongs to. A user will get all permissions granted to each of their groups.', related_name='user_set', related_query_name='user', to='auth.group', verbose_name='groups')),
                ('user_permissions', models.ManyToManyField(blank=True, help_text='Specific permissions for this user.', related_name='user_set', related_query_name='user', to='auth.permission', verbose_name='user permissions')),
            ],
            options={
                'verbose_name': 'user',
                'verbose_name_plural': 'users',
                'abstract': False,
            },
            managers=[
                ('objects', django.contrib.auth.models.UserManager()),
            ],
        ),
        migrations.CreateModel(
            name='IdempotencyKey',
            fields=[
                ('id', models.UUIDField(default=gpuyard.core.ids.uuid7, editable=False, primary_key=True, serialize=False)),
                ('key', models.CharField(max_length=200)),
                ('method', models.CharField(max_length=10)),
                ('path', models.CharField(max_length=400)),
                ('request_hash', models.CharField(max_length=64)),
                ('status', models.PositiveSmallIntegerField(null=True)),
                ('body', models.JSONField(null=True)),
                ('created_at', models.DateTimeField(db_default=gpuyard.core.clock.YardNow(), editable=False)),
                ('user', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to=settings.AUTH_USER_MODEL)),
            ],
            options={
                'constraints': [models.UniqueConstraint(fields=('user', 'key'), name='core_idempotencykey_once')],
            },
        ),
    ]
